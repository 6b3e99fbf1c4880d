"""Runs a shell script many times with HyperQueue on one local worker. Prints the seconds."""

import os
import sys
import time

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

script, count, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.makedirs(folder)
os.chdir(folder)
with LocalCluster(worker_config=WorkerConfig()) as cluster:
    client = cluster.client()

    def seconds(tasks, name):
        job = Job()
        events = [f"{folder}/{name}-{i}.jsonl" for i in range(tasks)]
        for file in events:
            job.program(["sh", script], env={"SCALELAB_EVENTS": file})
        start = time.time()
        client.wait_for_jobs([client.submit(job)])
        # HyperQueue's client queries the state only once a second, so determine the end from the file of
        # the last task.
        return max(os.stat(file).st_mtime for file in events) - start

    seconds(20, "warm")
    print(seconds(count, "events"))
