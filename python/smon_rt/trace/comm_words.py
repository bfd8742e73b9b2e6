"""Names of the numbers in operations of NCCL: those of csrc/format/comm_words.h and in_flight.h's ChannelState."""

from __future__ import annotations

FUNCTION_NAMES = (
    *("unknown", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    *("send", "recv", "all_to_all", "gather", "scatter"),
)
DATATYPE_NAMES = (
    *("unknown", "int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"),
)
ALGORITHM_NAMES = ("unknown", "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOL_NAMES = ("unknown", "ll", "ll128", "simple")
CHANNEL_STATE_NAMES = (
    *("idle", "send_gpu_wait", "send_peer_wait", "send_wait"),
    *("recv_wait", "recv_flush_wait", "recv_gpu_wait"),
)
