"""What a simulated accelerator is made of: progress, contention, copies, mechanisms, faults."""
