#!/usr/bin/env python3
"""The manifests of config/kubernetes: they agree with each other, and with what prd takes. Usage: kubernetes_test.py BIN_DIR [TEST ...]

The daemon and the workers run here with the configuration, the environment and the keys that the manifests give them.
"""
import place
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest

try:
    import yaml
except ImportError:
    yaml = None

PYTHON = "/usr/bin/python3"
FOLDER = place.ROOT / "config/kubernetes"
# What the cluster knows of a pod, as the manifests ask for it.
FIELDS = {
    "metadata.labels['jobset.sigs.k8s.io/jobset-name']": "mnist",
    "metadata.labels['batch.kubernetes.io/controller-uid']": "7d4e0b6c",
    "metadata.annotations['batch.kubernetes.io/job-completion-index']": None,
}


@unittest.skipIf(yaml is None, "Debian package python3-yaml is not installed")
class Kubernetes(unittest.TestCase):
    def setUp(self):
        self.documents = {}
        for path in FOLDER.glob("*.yaml"):
            for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
                self.documents[document["kind"], document["metadata"]["name"]] = document
        self.job = self.documents["JobSet", "mnist"]["spec"]["replicatedJobs"][0]["template"]["spec"]
        self.pod = self.job["template"]
        self.container = self.pod["spec"]["containers"][0]
        self.daemon_pod = self.documents["Deployment", "prd"]["spec"]["template"]
        self.daemon = self.daemon_pod["spec"]["containers"][0]

    def test_the_manifests_agree(self):
        environment = {entry["name"]: entry for entry in self.container["env"]}
        low, high = map(int, environment["PRD_MESH_PORTS"]["value"].split("-"))
        workers = self.documents["NetworkPolicy", "prd-workers"]["spec"]
        mesh = [{"port": low, "endPort": high}]
        self.assertEqual([workers["ingress"][0]["ports"], workers["egress"][0]["ports"]], [mesh, mesh])
        service = self.documents["Service", "prd"]
        port = next(port["port"] for port in service["spec"]["ports"] if port["name"] == "workers")
        self.assertEqual(environment["PRD_CONTROLLER"]["value"], f"tcp://{service['metadata']['name']}:{port}")
        config = self.documents["ConfigMap", "prd"]["data"]["prd.toml"]
        self.assertIn(f':{port}"', config)
        self.assertEqual(workers["egress"][1]["ports"], [{"port": port}])
        controller = self.documents["NetworkPolicy", "prd-controller"]["spec"]
        self.assertEqual(controller["ingress"][0]["ports"], [{"port": port}])
        metrics = next(port["containerPort"] for port in self.daemon["ports"] if port["name"] == "metrics")
        self.assertIn(f'metrics = "0.0.0.0:{metrics}"', config)
        self.assertEqual(controller["ingress"][1]["ports"], [{"port": metrics}])
        labels = [self.pod["metadata"]["labels"], self.daemon_pod["metadata"]["labels"]]
        self.assertEqual([workers["podSelector"]["matchLabels"], controller["podSelector"]["matchLabels"]], labels)
        self.assertEqual(service["spec"]["selector"], labels[1])
        self.assertTrue(service["spec"]["publishNotReadyAddresses"], "workers hear why they wait")
        self.assertEqual(environment["PRD_WORLD_SIZE"]["value"], str(self.job["completions"]))
        self.assertEqual(self.job["parallelism"], self.job["completions"])
        self.assertEqual((self.job["completionMode"], self.pod["spec"]["restartPolicy"]), ("Indexed", "Never"))  # for failures by index
        version = re.search(r'__version__ = "(.*)"', (place.PACKAGE / "prd/__init__.py").read_text())[1]
        self.assertEqual(self.daemon["image"], f"registry.example/prd:{version}")
        for pod, container in ((self.pod["spec"], self.container), (self.daemon_pod["spec"], self.daemon)):
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            self.assertEqual(mounts, {volume["name"] for volume in pod["volumes"]})

    def pods(self):
        return {"worker": self.pod, "daemon": self.daemon_pod}

    def test_what_they_refer_to_is_there(self):
        """Selectors find pods, volumes and ports are somebody's, and whoever may send to a pod is also let in there."""
        names = {(kind, name) for kind, name in self.documents}
        secrets = {"prd-daemon": {"prd-secret-key", "workers.pub"}, "prd-worker": {"prd-secret-key", "server-key"}}
        readme = (FOLDER / "README.md").read_text()
        for secret, keys in secrets.items():
            self.assertIn(secret, readme, "who is to make it")
            for key in keys:
                self.assertIn(key, readme)
        for who, pod in self.pods().items():
            container, = pod["spec"]["containers"]
            for volume in pod["spec"]["volumes"]:
                if "configMap" in volume:
                    self.assertIn(("ConfigMap", volume["configMap"]["name"]), names, who)
                elif "persistentVolumeClaim" in volume:
                    self.assertIn(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]), names, who)
                elif "secret" in volume:
                    asked = {item["key"] for item in volume["secret"].get("items", [])}
                    self.assertLessEqual(asked, secrets[volume["secret"]["secretName"]], who)
                else:
                    self.assertEqual(set(volume), {"name", "emptyDir"}, who)
            ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in container:
                    self.assertIn(container[probe]["httpGet"]["port"], ports, (who, probe))
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            environment = {entry["name"]: entry for entry in container["env"]}
            self.assertEqual(environment["CREDENTIALS_DIRECTORY"]["value"], mounts["keys"], who)
            for entry in container["env"]:
                of = entry.get("valueFrom", {}).get("secretKeyRef")
                if of:
                    self.assertIn(of["key"], secrets[of["name"]], who)
        # The daemon's root is read-only: what it reads and writes is on a volume.
        self.assertTrue(self.daemon["securityContext"]["readOnlyRootFilesystem"])
        config = self.documents["ConfigMap", "prd"]["data"]["prd.toml"]
        for path in [*re.findall(r'"(?:ipc://)?(/[^"]+)"', config), self.daemon["command"][2]]:
            self.assertTrue(any(path.startswith(mount["mountPath"] + "/") for mount in self.daemon["volumeMounts"]), path)
        self.assertIn(pathlib.Path(self.daemon["command"][2]).name, self.documents["ConfigMap", "prd"]["data"])
        # Selectors.
        deployment, service = self.documents["Deployment", "prd"]["spec"], self.documents["Service", "prd"]["spec"]
        for selector in (deployment["selector"]["matchLabels"], service["selector"]):
            self.assertEqual(self.selected(selector), ["daemon"])
        self.assertEqual({port["name"]: port["port"] for port in service["ports"]},
                         {port["name"]: port["containerPort"] for port in self.daemon["ports"]})
        mesh, = (entry["value"] for entry in self.container["env"] if entry["name"] == "PRD_MESH_PORTS")
        low, high = map(int, mesh.split("-"))
        listens = {"worker": set(range(low, high + 1)), "daemon": {port["containerPort"] for port in self.daemon["ports"]}}
        policies = [document["spec"] for (kind, _), document in self.documents.items() if kind == "NetworkPolicy"]
        policy_of = {}
        for policy in policies:
            who, = self.selected(policy["podSelector"]["matchLabels"])
            self.assertEqual(policy["policyTypes"], ["Ingress", "Egress"], who)
            policy_of[who] = policy
        self.assertEqual(set(policy_of), set(self.pods()))
        sends, takes = set(), set()
        for who, policy in policy_of.items():
            for rules, peers, routes, mirrored in ((policy["egress"], "to", sends, False), (policy["ingress"], "from", takes, True)):
                for rule in rules:
                    for peer in rule[peers]:
                        if "namespaceSelector" in peer:
                            continue  # the cluster's: its name server, its Prometheus
                        for other in self.selected(peer["podSelector"]["matchLabels"]):
                            for port in rule["ports"]:
                                for number in range(port["port"], port.get("endPort", port["port"]) + 1):
                                    routes.add((other, who, number) if mirrored else (who, other, number))
        self.assertEqual(sends, takes)
        self.assertEqual(sends, {("worker", "worker", port) for port in listens["worker"]} | {("worker", "daemon", 5775)})
        for _, to, port in takes:
            self.assertIn(port, listens[to])
        asked = policy_of["daemon"]["ingress"][1]
        self.assertLessEqual({port["port"] for port in asked["ports"]}, listens["daemon"])

    def selected(self, labels):
        """Which pods have these labels."""
        return [who for who, pod in self.pods().items() if labels.items() <= pod["metadata"]["labels"].items()]

    def test_a_job_with_what_they_give(self):
        with tempfile.TemporaryDirectory(prefix="prd-test-") as name:
            folder = pathlib.Path(name)
            keys = {}
            for who in ("daemon", "worker"):
                (folder / who).mkdir()
                subprocess.run([place.BIN / "prdctl", "keygen", folder / who / "key"], check=True, stdout=subprocess.DEVNULL)
                keys[who] = (folder / who / "key.pub").read_text().strip()
                (folder / who / "key.key").rename(folder / who / "prd-secret-key")
                (folder / who / "prd-secret-key").chmod(0o440)  # as the volume has it
            (folder / "daemon/workers.pub").write_text(keys["worker"] + "\n")
            port, metrics = place.cluster.free_port(), place.cluster.free_port()
            config = self.documents["ConfigMap", "prd"]["data"]["prd.toml"]
            for there, here in (("0.0.0.0:5775", f"127.0.0.1:{port}"), ("0.0.0.0:9464", f"127.0.0.1:{metrics}"), ("/run/prd/", f"{folder}/"),
                                ("/var/lib/prd/", f"{folder}/"), ("/run/secrets/prd", f"{folder}/daemon")):
                self.assertIn(there, config)
                config = config.replace(there, here)
            (folder / "prd.toml").write_text(config + "lease_ms = 1000\nheartbeat_ms = 200\n")
            # The folders of the pod are not there.
            given = {entry["name"]: entry.get("value") for entry in self.daemon["env"]}
            self.assertEqual(given, {"CREDENTIALS_DIRECTORY": "/run/secrets/prd"})
            environment = dict(os.environ, CREDENTIALS_DIRECTORY=str(folder / "daemon"))
            command = [place.BIN / self.daemon["command"][0], self.daemon["command"][1], folder / "prd.toml"]
            subprocess.run([*command, "--check-config"], env=environment, check=True, stdout=subprocess.DEVNULL)
            (folder / "train.py").write_text(place.DIES_ONCE)
            with open(folder / "log", "w") as log:
                daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
                workers = []
                try:
                    for rank in range(3):
                        workers.append(self.worker(folder, rank, port, keys["daemon"]))
                    # The second one dies. A pod of the same index takes its place.
                    workers[1].communicate(timeout=90)
                    self.assertEqual(workers[1].returncode, -signal.SIGKILL)
                    workers[1] = self.worker(folder, 1, port, keys["daemon"])
                    for worker in workers:
                        _, err = worker.communicate(timeout=90)
                        self.assertEqual(worker.returncode, 0, err + (folder / "log").read_text()[-2000:])
                    self.assertEqual(place.finished(folder), [f"{rank}-of-3" for rank in range(3)])
                finally:
                    for process in [*workers, daemon]:
                        process.kill()
                        process.wait()

    def worker(self, folder, rank, port, server_key):
        environment = dict(os.environ, PYTHONPATH=str(place.PACKAGE), FOLDER=str(folder))
        for entry in self.container["env"]:
            source = entry.get("valueFrom", {})
            if "fieldRef" in source:
                value = FIELDS[source["fieldRef"]["fieldPath"]] or str(rank)
            elif "secretKeyRef" in source:
                self.assertEqual(source["secretKeyRef"]["key"], "server-key")
                value = server_key
            else:
                value = entry["value"]
            environment[entry["name"]] = value
        environment.update(PRD_CONTROLLER=f"tcp://127.0.0.1:{port}", PRD_WORLD_SIZE="3", CREDENTIALS_DIRECTORY=str(folder / "worker"))
        return subprocess.Popen([PYTHON, folder / "train.py"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


if __name__ == "__main__":
    unittest.main()
