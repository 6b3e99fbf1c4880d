"""deploy/dev-cluster: the removal of control groups."""
import os
import re
import subprocess
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy", "slurm", "daemons.sh")


class RemoveCgroups(unittest.TestCase):
    def remove(self, directory):
        """Calls remove_cgroups for the node `n1` and the control groups below a directory. Returns its exit status."""
        with open(SCRIPT, encoding="utf-8") as file:
            function = re.search(r"^remove_cgroups\(\) {\n.*?^}\n", file.read(), re.MULTILINE | re.DOTALL).group()
        self.assertIn("/sys/fs/cgroup", function)
        script = f"nodes() {{ echo n1; }}\n{function.replace('/sys/fs/cgroup', directory)}\nremove_cgroups"
        return subprocess.run(["bash", "-c", script], check=False).returncode

    def test_it_fails_until_every_group_is_removed(self):
        with tempfile.TemporaryDirectory() as directory:
            os.makedirs(f"{directory}/memory/slurm_n1/job_1/step_0")
            os.makedirs(f"{directory}/freezer/slurm_n1")
            os.makedirs(f"{directory}/memory/slurm_n2")
            # The kernel refuses to remove a group with processes; here it refuses to remove a folder with a file.
            process = f"{directory}/memory/slurm_n1/job_1/step_0/process"
            with open(process, "w", encoding="utf-8"):
                pass
            self.assertEqual(self.remove(directory), 1)
            self.assertTrue(os.path.exists(process))
            os.remove(process)
            self.assertEqual(self.remove(directory), 0)
            self.assertEqual(os.listdir(f"{directory}/memory"), ["slurm_n2"])
            self.assertEqual(os.listdir(f"{directory}/freezer"), [])
            self.assertEqual(self.remove(directory), 0)


if __name__ == "__main__":
    unittest.main()
