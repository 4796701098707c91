"""The process that holds a GPU: frames of work in, answers out."""
