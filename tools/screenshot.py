"""Make docs/images/report.png, the first screen of a report: python tools/screenshot.py [RECORD].

The report is written anew from a committed record and photographed by headless Chromium.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from synthesizer_attention.report.write import write_report

ROOT = Path(__file__).parents[1]
RECORD, OUT = ROOT / "results" / "grammar-ende.zip", ROOT / "docs" / "images" / "report.png"
WIDTH, HEIGHT, MOST_BYTES = 1280, 706, 60_000  # above the second plot's caption
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def photograph(page: Path, out: Path, profile: Path) -> None:
    """The page's first screen as a PNG."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"no browser was found; install one of {', '.join(BROWSERS)}")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    size, taken = f"--window-size={WIDTH},{HEIGHT}", profile / "page.png"
    light = "--blink-settings=preferredColorScheme=1"
    where = (f"--user-data-dir={profile}", f"--screenshot={taken}", page.as_uri())
    done = subprocess.run(
        [browser, *flags, size, light, *where], capture_output=True, text=True, timeout=120
    )
    if not taken.exists():
        sys.exit(f"{browser} took no picture: {done.stderr[-300:]}")
    Image.open(taken).convert("RGB").quantize(128).save(out, optimize=True)
    if out.stat().st_size > MOST_BYTES:
        sys.exit(f"{out} has {out.stat().st_size:,} bytes; expected at most {MOST_BYTES:,}")


if __name__ == "__main__":
    record = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORD
    with TemporaryDirectory() as folder:
        home = Path(folder)
        photograph(write_report([record], home / "report"), OUT, home)
    print(f"{OUT.relative_to(ROOT)}  {OUT.stat().st_size:,} bytes")
