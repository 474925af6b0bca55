"""What `/metrics` of the known servers looks like, with some of what nobody asks for."""

from __future__ import annotations

from garrison.models.deployment import LoadPreset


def vllm(running: str = "3.0", waiting: str = "2.0", done: float = 40, model: str = "llama") -> str:
    labels = f'engine="0",model_name="{model}"'
    return f"""\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{{generation="0"}} 9931.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{labels}}} {running}
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{{labels}}} {waiting}
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{{labels}}} 0.25
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{{{labels},finished_reason="stop"}} {done}
vllm:request_success_total{{{labels},finished_reason="length"}} 2.0
vllm:request_success_total{{{labels},finished_reason="abort"}} 0.0
# HELP vllm:request_success_created Count of successfully processed requests.
# TYPE vllm:request_success_created gauge
vllm:request_success_created{{{labels},finished_reason="stop"}} 1.7e+09
# HELP vllm:e2e_request_latency_seconds Histogram of e2e request latency in seconds.
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{{{labels},le="+Inf"}} 42.0
vllm:e2e_request_latency_seconds_count{{{labels}}} 42.0
vllm:e2e_request_latency_seconds_sum{{{labels}}} 311.5
"""


def sglang(
    running: str = "3.0", waiting: str = "2.0", done: float = 40, model: str = "qwen"
) -> str:
    labels = f'engine_type="unified",model_name="{model}",pp_rank="0",tp_rank="0"'
    return f"""\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{{labels}}} {running}
# HELP sglang:token_usage The token usage.
# TYPE sglang:token_usage gauge
sglang:token_usage{{{labels}}} 0.28
# HELP sglang:num_queue_reqs The number of requests in the waiting queue.
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{{{labels}}} {waiting}
# HELP sglang:num_requests_total Number of requests processed.
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{{model_name="{model}"}} {done}
# HELP sglang:num_aborted_requests_total Number of requests aborted.
# TYPE sglang:num_aborted_requests_total counter
sglang:num_aborted_requests_total{{model_name="{model}"}} 5.0
"""


def tgi(running: str = "3", waiting: str = "2", came: float = 45, done: float = 40) -> str:
    return f"""\
# TYPE tgi_request_count counter
tgi_request_count {came}

# TYPE tgi_request_success counter
tgi_request_success {done}

# TYPE tgi_request_failure counter
tgi_request_failure{{err="overloaded"}} 1

# TYPE tgi_batch_current_size gauge
tgi_batch_current_size {running}

# TYPE tgi_batch_current_max_tokens gauge
tgi_batch_current_max_tokens 1024

# TYPE tgi_queue_size gauge
tgi_queue_size {waiting}

# TYPE tgi_request_duration histogram
tgi_request_duration_bucket{{le="+Inf"}} 40
tgi_request_duration_sum 311.5
tgi_request_duration_count 40
"""


def triton(spent_us: int = 0, waited_us: int = 0, pending: str = "2", done: float = 40) -> str:
    labels = 'model="bert",version="1"'
    return f"""\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{{{labels}}} {done}
# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{{{labels},reason="REJECTED"}} 1
nv_inference_request_failure{{{labels},reason="OTHER"}} 0
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{{{labels}}} 320
# HELP nv_inference_request_duration_us Cumulative inference request duration in microseconds
# TYPE nv_inference_request_duration_us counter
nv_inference_request_duration_us{{{labels}}} {spent_us}
# HELP nv_inference_queue_duration_us Cumulative inference queuing duration in microseconds
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{{{labels}}} {waited_us}
# HELP nv_inference_pending_request_count Instantaneous number of pending requests
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{{{labels}}} {pending}
"""


def ray_serve(running: str = "3.0", queued: str = "2.0", came: float = 45, done: float = 40) -> str:
    name = 'application="chat",deployment="LLM"'
    router = f'{name},handle="h1",actor_id="a1",SessionName="session_1"'
    replica = f'{name},replica="r1",SessionName="session_1"'
    return f"""\
# HELP ray_serve_num_ongoing_requests_at_replicas Requests submitted to a replica.
# TYPE ray_serve_num_ongoing_requests_at_replicas gauge
ray_serve_num_ongoing_requests_at_replicas{{{router}}} {running}
# HELP ray_serve_replica_processing_queries Requests being processed.
# TYPE ray_serve_replica_processing_queries gauge
ray_serve_replica_processing_queries{{{replica}}} 2.0
# HELP ray_serve_deployment_queued_queries Queries waiting to be assigned to a replica.
# TYPE ray_serve_deployment_queued_queries gauge
ray_serve_deployment_queued_queries{{{router}}} {queued}
# HELP ray_serve_num_router_requests_total Requests processed by the router.
# TYPE ray_serve_num_router_requests_total counter
ray_serve_num_router_requests_total{{{router},route="/"}} {came}
# HELP ray_serve_deployment_request_counter_total Queries processed in this replica.
# TYPE ray_serve_deployment_request_counter_total counter
ray_serve_deployment_request_counter_total{{{replica},route="/"}} {done}
"""


OLDER_RAY_SERVE = """\
# TYPE ray_serve_replica_processing_queries gauge
ray_serve_replica_processing_queries{application="chat",deployment="LLM",replica="r1"} 3.0
# TYPE ray_serve_deployment_queued_queries gauge
ray_serve_deployment_queued_queries{application="chat",deployment="LLM"} 2.0
# TYPE ray_serve_num_router_requests gauge
ray_serve_num_router_requests{application="chat",deployment="LLM"} 45.0
# TYPE ray_serve_deployment_request_counter gauge
ray_serve_deployment_request_counter{application="chat",deployment="LLM",replica="r1"} 40.0
"""

TEXTS = {
    LoadPreset.VLLM: vllm(),
    LoadPreset.SGLANG: sglang(),
    LoadPreset.TGI: tgi(),
    LoadPreset.TRITON: triton(),
    LoadPreset.RAY_SERVE: ray_serve(),
}
MODELS = {
    LoadPreset.VLLM: "llama",
    LoadPreset.SGLANG: "qwen",
    LoadPreset.TGI: None,
    LoadPreset.TRITON: "bert",
    LoadPreset.RAY_SERVE: "chat",
}
