"""deploy/nginx/scalelab.nft: the kernel limits the connections of one address to the port of the reverse proxy."""
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import unittest

NGINX = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy", "nginx")
RULES = os.path.join(NGINX, "scalelab.nft")
LIMIT = 64


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def connect(family, address, port, count):
    """Opens connections to a socket that listens in this process. Returns how many of them are accepted, and how many reset."""
    with socket.create_server((address, port), family=family, backlog=count) as server:
        kept, reset = [], 0
        for _ in range(count):
            client = socket.socket(family, socket.SOCK_STREAM)
            client.settimeout(10)
            error = client.connect_ex((address, port))
            if error == errno.ECONNREFUSED:
                reset += 1
            elif error != 0:
                raise OSError(error, os.strerror(error))
            kept.append((client, server.accept() if error == 0 else None))
        return sum(accepted is not None for _, accepted in kept), reset


def in_a_network_of_its_own():
    """Runs in a new network namespace."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for _ in range(2):  # loading the file again must not add rules a second time
        subprocess.run(["nft", "-f", RULES], check=True)
    port = int(re.search(r"listen (\d+) ssl", read(os.path.join(NGINX, "scalelab.conf"))).group(1))
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        print(*connect(family, address, port, LIMIT + 16))
    print(*connect(socket.AF_INET, "127.0.0.1", port + 1, LIMIT + 16))
    rules = subprocess.run(["nft", "list", "table", "inet", "scalelab"], check=True, capture_output=True, text=True).stdout
    print(rules.count("reject"))


class Connections(unittest.TestCase):
    def test_those_of_one_address_to_the_proxy_are_limited(self):
        if shutil.which("nft") is None or shutil.which("ip") is None:
            self.skipTest("nft or ip is missing; run deploy/setup --front")
        if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("this account may not make a network namespace")
        result = subprocess.run(
            ["unshare", "--net", sys.executable, "-B", __file__, "inside"], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.splitlines(), [f"{LIMIT} 16", f"{LIMIT} 16", f"{LIMIT + 16} 0", "2"])


if __name__ == "__main__":
    if sys.argv[1:] == ["inside"]:
        in_a_network_of_its_own()
    else:
        unittest.main()
