"""Traces in the forms of other tools: Perfetto, the Trace Event Format, the artifact's parquet, csv.

Loads neither the recorder nor the engine.
"""
