#!/usr/bin/env bash
# Writes Triton's repositories: defaults (repo) and with a bounded queue (repo_queue).
set -euo pipefail
run=$PEERS_HOME/triton_run
numpy=$PEERS_HOME/tritonserver/numpy1 # the backend's stub answers nothing under numpy 2
rm -rf "$run"; mkdir -p "$run/repo"
for row in "echo 16 16" "cnn 3,64,64 100" "img 3,224,224 3,224,224"; do
  set -- $row
  own=$run/repo/$1/1 # a worker of ours reads nothing outside the repository
  mkdir -p "$own/repo"; cp "$HARNESS/models.py" "$own/"; cp -r "$HARNESS/repo/cnn" "$own/repo/"
  cat > "$run/repo/$1/config.pbtxt" <<CONFIG
name: "$1"
backend: "python"
max_batch_size: 16
input [{ name: "INPUT" data_type: TYPE_FP32 dims: [ $2 ] }]
output [{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ $3 ] }]
dynamic_batching { max_queue_delay_microseconds: 1000 }
instance_group [{ count: 1 kind: KIND_CPU }]
CONFIG
  cat > "$own/model.py" <<MODEL
import sys; sys.path[:0] = ["$own", "$numpy", "$SITE"]  # the backend's stub ignores PYTHONPATH
import numpy as np, models
import triton_python_backend_utils as pb
class TritonPythonModel:
    def initialize(self, args):
        self.run = models.load("$1")
    def execute(self, requests):
        xs = [pb.get_input_tensor_by_name(r, "INPUT").as_numpy() for r in requests]
        (y,) = self.run([xs[0] if len(xs) == 1 else np.concatenate(xs)])
        at, out = 0, []
        for x in xs:
            rows = np.ascontiguousarray(y[at : at + len(x)]); at += len(x)
            out.append(pb.InferenceResponse([pb.Tensor("OUTPUT", rows)]))
        return out
MODEL
done
cp -r "$run/repo" "$run/repo_queue"
queue='default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 50000 allow_timeout_override: true max_queue_size: 256 }'
sed -i "s/^dynamic_batching.*/dynamic_batching { max_queue_delay_microseconds: 1000 $queue }/" "$run"/repo_queue/*/config.pbtxt
