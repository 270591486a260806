"""Write the help texts that come with every Python, one file each: some 465 KB of English."""

import sys
from pathlib import Path
from pydoc_data.topics import topics

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for name, text in topics.items():
    (folder / f"{name}.txt").write_text(text, encoding="utf-8")
