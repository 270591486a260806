"""From text, JSON Lines and Parquet to a Megatron pair."""
