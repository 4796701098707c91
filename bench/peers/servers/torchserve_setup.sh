#!/usr/bin/env bash
# Archives the three models and writes TorchServe's settings into $PEERS_HOME/ts_run.
set -euo pipefail
run=$PEERS_HOME/ts_run
rm -rf "$run"; mkdir -p "$run/store"; cd "$run"
for model in echo cnn img; do
  "$PEERS_HOME/torchserve/bin/torch-model-archiver" --model-name $model --version 1.0 \
    --handler "$HARNESS/servers/ts_handler.py" --export-path store -f
done
one() { echo "\"$1\":{\"1.0\":{\"defaultVersion\":true,\"marName\":\"$1.mar\",\"minWorkers\":1,\"maxWorkers\":1,\"batchSize\":16,\"maxBatchDelay\":1,\"responseTimeout\":60}}"; }
cat > config.properties <<SETTINGS
inference_address=http://127.0.0.1:18900
management_address=http://127.0.0.1:18903
metrics_address=http://127.0.0.1:18902
grpc_inference_address=127.0.0.1
grpc_management_address=127.0.0.1
grpc_inference_port=18901
grpc_management_port=18904
disable_token_authorization=true
default_workers_per_model=1
max_request_size=65535000
max_response_size=65535000
disable_system_metrics=true
load_models=echo.mar,cnn.mar,img.mar
models={$(one echo),$(one cnn),$(one img)}
SETTINGS
cat > log4j2.xml <<SETTINGS
<Configuration status="WARN"><Appenders><Console name="c"><PatternLayout pattern="%d %p %m%n"/></Console></Appenders><Loggers><Root level="warn"><AppenderRef ref="c"/></Root></Loggers></Configuration>
SETTINGS
