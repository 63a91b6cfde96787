"""The application's file for spark-submit, which `backflow spark-package` copies: runs a check.

`spark-submit [OPTIONS OF SPARK] backflow-check.py NAME [OPTIONS]`. Findings are JSON lines on the driver's standard
output. The exit status is 0 unless the options are wrong (2) or the check failed (3).
"""

import sys

from spark_checks.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], submitted=True))
