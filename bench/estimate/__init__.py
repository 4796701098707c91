"""Constants of estimated latencies: fitted to public measurements, and checked by splits."""
