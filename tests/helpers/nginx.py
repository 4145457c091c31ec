"""nginx that ends the TLS of tunnels."""

import shutil
import socket
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sites import until

NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
{server}
}}
"""
PAGE = Path(__file__).parents[2] / "docs/networks.md"


@asynccontextmanager
async def nginx(folder, web, tunnels):
    """nginx with the snippet of docs/networks.md in front of tunnels: its HOST:PORT."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = PAGE.read_text().split("```nginx\n")[1].split("```")[0]
    for old, new in {
        "listen 443": f"listen 127.0.0.1:{port}",
        "server_name fed.example.org": "server_name localhost",
        "/etc/ssl/fed.pem": f"{web}/certificate.pem",
        "/etc/ssl/fed.key": f"{web}/key.pem",
        "127.0.0.1:8080": tunnels["websocket"],
        "127.0.0.1:8081": tunnels["grpc"],
    }.items():
        assert old in server
        server = server.replace(old, new)
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, server=server))
    process = subprocess.Popen(["nginx", "-p", str(folder), "-e", "stderr", "-c", str(file)])
    try:
        await until(lambda: is_open(port) or process.poll() is not None)
        assert process.poll() is None
        yield f"localhost:{port}"
    finally:
        process.terminate()
        process.wait()


def is_open(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
