"""The composition root of a worker pod: `python -m worker ...`."""

import logging

from worker.cli import main

if __name__ == "__main__":
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO
    )
    main()
