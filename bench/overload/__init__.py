"""What happens when more arrives than can be served, when a request is wrong, when it must stop."""
