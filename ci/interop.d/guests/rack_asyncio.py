"""Twenty connections at once to a server that gives back what it gets; every byte is looked at."""
import asyncio
import os


async def echo(reader, writer):
    while data := await reader.read(70000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def client(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = os.urandom(1 << 20)
    for _ in range(20):
        writer.write(data[:50])
        assert await reader.readexactly(50) == data[:50]

    async def send():
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    assert await reader.read(-1) == data
    await sending
    writer.close()


async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await asyncio.gather(*[client(port) for _ in range(20)])
    print("right")


asyncio.run(main())
