"""The composition root of a worker pod: `python -m worker ...`."""

from worker.command import main
from worker.log_lines import configure

if __name__ == "__main__":
    configure()
    main()
