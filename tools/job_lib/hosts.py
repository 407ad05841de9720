"""Several hosts on one machine: network namespaces on a switch, each behind a link of limited bandwidth.

Nothing has a name outside: namespaces and links go with the processes that hold them, however a test ends.
"""
import json
import shutil
import subprocess

TOOLS = ("ip", "nsenter", "setpriv", "tc", "unshare")


def why_not():
    """Why there can be no such hosts here; empty: there can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    try:
        with Hosts(1, "100mbit"):
            return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not permitted: {' '.join(error.cmd)}: {error.stderr.strip()}"


class Namespace:
    """A network namespace, held by a process that dies with this one."""

    def __init__(self):
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "echo; exec sleep infinity"]
        self.holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if not self.holder.stdout.readline():
            _, err = self.holder.communicate()
            raise subprocess.CalledProcessError(self.holder.returncode, command, stderr=err)
        self.enter = ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net"]

    def run(self, command):
        return subprocess.run([*self.enter, *command.split()], check=True, capture_output=True, text=True).stdout

    def close(self):
        self.holder.kill()
        self.holder.communicate()


class Hosts:
    """`count` hosts, whose links carry `rate` (as tc writes it) each way. Use in a with statement.

    ipv6: their links have IPv6 addresses only, rather than IPv4 addresses only."""

    def __init__(self, count, rate, ipv6=False):
        self.spaces = []
        self.count = count
        self.rate = rate
        self.ipv6 = ipv6

    def __enter__(self):
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for space in self.spaces:
            space.close()

    def _connect(self):
        self.spaces.append(Namespace())
        switch = self.spaces[0]
        switch.run("ip link add switch type bridge")
        switch.run("ip link set switch up")
        for host in range(self.count):
            self.spaces.append(Namespace())
            space = self.spaces[-1]
            switch.run(f"ip link add port{host} type veth peer name eth0 netns {space.holder.pid}")
            switch.run(f"ip link set port{host} master switch up")
            if self.ipv6:  # nodad: usable at once
                space.run(f"ip -6 address add {self.address(host)}/64 dev eth0 nodad")
            else:
                space.run(f"ip address add {self.address(host)}/24 dev eth0")
            space.run("ip link set eth0 up")
            space.run("ip link set lo up")
            self.set_rate(host, self.rate)

    def set_rate(self, host, rate):
        """What its link carries from now on, as tc writes it, each way."""
        limit = f"root tbf rate {rate} burst 128kb latency 100ms"
        self.spaces[host + 1].run(f"tc qdisc replace dev eth0 {limit}")
        self.spaces[0].run(f"tc qdisc replace dev port{host} {limit}")

    def cut(self, host, other, one_way=False):
        """Nothing that one sends reaches the other, or (one_way) that `host` sends `other`. Their other links stay."""
        self._change_routes("add", host, other, one_way)

    def mend(self, host, other, one_way=False):
        """Ends a cut."""
        self._change_routes("delete", host, other, one_way)

    def _change_routes(self, change, host, other, one_way):
        for at, to in ((host, other),) if one_way else ((host, other), (other, host)):
            self.spaces[at + 1].run(f"ip -{6 if self.ipv6 else 4} route {change} blackhole {self.address(to)}")

    def join(self, host, other):
        """A link of their own between the two, without a limit of its bandwidth."""
        switch = self.spaces[0]
        switch.run("ip link add direct type bridge")
        switch.run("ip link set direct up")
        for at, to in ((host, other), (other, host)):
            space = self.spaces[at + 1]
            switch.run(f"ip link add direct{at} type veth peer name eth1 netns {space.holder.pid}")
            switch.run(f"ip link set direct{at} master direct up")
            space.run("ip link set eth1 up gso_max_segs 1")  # each packet is one on the wire
            space.run(f"ip -{6 if self.ipv6 else 4} route add {self.address(to)} dev eth1")

    def set_direct_mtu(self, host, mtu):
        """What is larger gets lost in the middle of the link that `host` has from join; its ends know of 1500 bytes."""
        self.spaces[0].run(f"ip link set direct{host} mtu {mtu}")

    def address(self, host):
        return f"fd77::{host + 1}" if self.ipv6 else f"10.77.0.{host + 1}"

    def enter(self, host):
        """What to put before a command that is to run there."""
        return self.spaces[host + 1].enter

    def enter_with_names(self, host, names):
        """The same, with the file `names` in the place of /etc/hosts for that command alone."""
        mount = f'mount --bind "{names}" /etc/hosts && exec "$0" "$@"'
        return [*self.enter(host), "unshare", "--mount", "sh", "-c", mount]

    def sent_bytes(self, host):
        """Over its link, so far."""
        return json.loads(self.spaces[host + 1].run("ip -json -statistics link show eth0"))[0]["stats64"]["tx"]["bytes"]
