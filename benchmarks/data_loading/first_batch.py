"""Times a cold start in this process: `python -m benchmarks.data_loading.first_batch`.

The arguments are a dataset's directory and a number of workers. Prints JSON.
"""

import json
import re
import sys
import time
from pathlib import Path

_BATCH = 8


def main() -> None:
    """Times the steps from imports to the first micro-batch."""
    start = time.perf_counter()
    # Imported here so that imports are timed.
    from benchmarks.data_loading.many_rows import MAX_TEXT_TOKENS
    from benchmarks.data_loading.samples import make_schedule
    from jaxload.data.config import DataConfig
    from jaxload.data.loader import Loader
    from jaxload.data.manifest import read_manifest

    imported = time.perf_counter()
    manifest = read_manifest(Path(sys.argv[1]))
    checked = time.perf_counter()
    schedule = make_schedule(manifest, lambda shape: _BATCH)
    planned = time.perf_counter()
    loader = Loader(
        manifest,
        schedule,
        DataConfig(path=sys.argv[1], num_workers=int(sys.argv[2])),
        replicas=[0],
        num_at_once=1,
        num_steps=1_000,
        num_text_tokens=MAX_TEXT_TOKENS,
    )
    reading = iter(loader)
    arrays = next(reading).arrays
    done = time.perf_counter()
    assert arrays["tokens"].shape[0] == arrays["text"].shape[0] == _BATCH
    # Not getrusage: its maximum includes the parent's memory at the time of the fork.
    status = Path("/proc/self/status").read_text()
    (kibibytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    reading.close()
    report = {
        "num_rows": len(manifest),
        "import_seconds": imported - start,
        "check_seconds": checked - imported,
        "plan_seconds": planned - checked,
        "read_seconds": done - planned,
        "seconds": done - imported,
        "peak_bytes": 1024 * int(kibibytes),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
