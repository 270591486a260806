"""The composition root of a worker pod: `python -m worker ...`."""

from worker.cli import main

if __name__ == "__main__":
    main()
