"""The load generator that every benchmark uses: raw sockets and epoll, closed and open loop."""
