"""Message classes of the trace file, generated from proto/smon_rt/v1 when the project is built.

Only the readers of traces import them; a training process never does. `tools/generate_proto.py` makes them.
"""
