#!/usr/bin/env bash
# Records chapters on a machine with a GPU that has no Jupyter and no network.
#
#     tutorials/scripts/record_gpu.sh WHEELS OUT NOTEBOOK …
#
# WHEELS   a folder with the packages that the machine lacks, or - where it lacks none
# OUT      a folder for recordings and notebooks
#
# PYTHON names a Python with torch, torchvision, scipy, pandas, matplotlib, tensorboard.
# The rest is about 20 MB. Fetch it where there is a network, for that Python:
#
#     python3 -m pip download --dest wheels --only-binary=:all: --python-version 3.12 \
#       --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
#       ipykernel ipywidgets nbclient nbformat ipyparallel psutil tqdm cloudpickle greenlet
#
# Each chapter is kept as soon as it is done. Nothing else of the machine is changed.
set -euo pipefail

(($# >= 3)) || { sed -n '2,16s/^# \?//p' "$0" >&2; exit 2; }
wheels=$1 out=$2
shift 2
python=${PYTHON:-python3}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

export IPYTHONDIR=$temporary/ipython JUPYTER_CONFIG_DIR=$temporary/config
export JUPYTER_DATA_DIR=$temporary/data JUPYTER_RUNTIME_DIR=$temporary/runtime
export MPLCONFIGDIR=$temporary/matplotlib KIT_CACHE=${KIT_CACHE:-$temporary/kit}
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$root
if [[ $wheels != - ]]; then
  "$python" -m pip install --quiet --no-index --find-links "$wheels" \
    --target "$temporary/packages" ipykernel ipywidgets nbclient nbformat \
    ipyparallel psutil tqdm cloudpickle greenlet
  export PYTHONPATH=$temporary/packages:$root
  export JUPYTER_PATH=$temporary/packages/share/jupyter
fi
"$python" -m kit machine
"$python" "$root/tutorials/scripts/record.py" --into "$out" "$@"
