"""A TCP proxy whose connections break when a test says so. Standard library only."""
import asyncio
import contextlib
import socket
import struct
import threading


class Proxy:
    """Passes what comes to .port on to a port of this host, and back. Use in a with statement."""

    def __init__(self, port):
        self.to = port
        self.writers = set()
        self.made = 0  # connections so far
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.thread.start()
        self.server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_):
        self.cut()
        self.loop.call_soon_threadsafe(self.server.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    def cut(self, reset=False):
        """Breaks all connections that there are, both ways: closed, or reset."""
        return self._call(self._cut(reset))

    def _run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    async def _cut(self, reset):
        writers, self.writers = self.writers, set()
        for writer in writers:
            if reset:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            else:
                writer.close()
        return len(writers) // 2

    async def _serve(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.to)
            self.made += 1
            self.writers |= {writer, to_writer}
            await asyncio.gather(self._pass(reader, to_writer), self._pass(to_reader, writer))

    async def _pass(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()
        self.writers.discard(writer)
