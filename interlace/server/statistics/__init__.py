"""What was served: ledgers of models, the metrics page, Triton's statistics."""
