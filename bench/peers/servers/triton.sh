#!/usr/bin/env bash
# The real tritonserver on $TRITON_REPO (in $PEERS_HOME/triton_run, if no path), with torch of the environment that runs this.
set -euo pipefail
top=$PEERS_HOME/tritonserver
repo=${TRITON_REPO:-repo}
[[ $repo = /* ]] || repo=$PEERS_HOME/triton_run/$repo
export LD_LIBRARY_PATH=$PYLIB:$top/nvidia_pytriton.libs
exec "$top/pytriton/tritonserver/bin/tritonserver" --model-repository="$repo" \
  --backend-directory="$top/pytriton/tritonserver/backends" \
  --http-address=127.0.0.1 --http-port=18900 --grpc-address=127.0.0.1 --grpc-port=18901 \
  --metrics-address=127.0.0.1 --metrics-port=18902 --allow-gpu-metrics=false "$@"
