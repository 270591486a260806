"""The command `heddle`, for processes that start it by their own interpreter."""

from heddle.main import main

if __name__ == "__main__":
    main()
