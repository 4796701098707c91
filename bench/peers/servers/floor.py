"""An upper bound, not a peer: it echoes the v2 binary payload; no queue, no checks, no worker."""

import asyncio

import uvloop


class Echo(asyncio.Protocol):
    """Just enough HTTP/1.1 to answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.buffer = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.buffer[:end]).lower()
            size = max(number(head, b"\ncontent-length:"), 0)
            if len(self.buffer) < end + 4 + size:
                return
            start = end + 4 + max(number(head, b"inference-header-content-length:"), 0)
            body = bytes(self.buffer[start : end + 4 + size])
            del self.buffer[: end + 4 + size]
            self.transport.write(reply(body))


def number(head: bytes, key: bytes) -> int:
    at = head.find(key)
    return -1 if at < 0 else int(head[at + len(key) :].split(b"\r\n", 1)[0])


def reply(body: bytes) -> bytes:
    text = (
        b'{"model_name":"m","outputs":[{"name":"OUTPUT","datatype":"FP32","shape":[1],'
        b'"parameters":{"binary_data_size":%d}}]}' % len(body)
    )
    sizes = (len(text), len(text) + len(body))
    head = b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    return head % sizes + text + body


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 18900)
    await server.serve_forever()


uvloop.run(main())
