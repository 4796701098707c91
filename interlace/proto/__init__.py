"""The protobuf definitions of the protocols that are spoken, and their message classes."""
