"""What every device process shares: frames, pending requests, the fork server, output memory."""
