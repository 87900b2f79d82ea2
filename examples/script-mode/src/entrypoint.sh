#!/bin/sh
# The working folder is $BAI_SCRIPTS_PATH; `python3` is the one that has the requirements.
set -eu
echo "python: $(command -v python3), $(python3 --version)"
exec python3 src/train.py --data data/digits.csv.gz --iterations "$ITERATIONS"
