"""What an operator does to let an application begin anew: Kafka's own StreamsResetter, and the local state deleted."""

import shutil
import subprocess

from testbed.processes import ProcessEndedError
from testbed.streams.app import StreamsApp
from testbed.streams.versions import TOOLS
from testbed.zookeeper import java_command


def reset(*instances: StreamsApp) -> None:
    """Delete the application's internal topics, set its group to the start of its input, and delete its local state.

    instances: all that it has, none of them running. Raises ProcessEndedError.
    """
    app = instances[0]
    arguments = ["org.apache.kafka.tools.StreamsResetter", "--bootstrap-server", app.bootstrap_servers]
    arguments += ["--application-id", app.application_id, "--input-topics", app.input_topic, "--force"]
    command = java_command(TOOLS, 128, app.state_dir.parent, arguments)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        msg = f"StreamsResetter could not reset {app.application_id}:\n{done.stdout}"
        raise ProcessEndedError(msg)
    for one in instances:
        shutil.rmtree(one.state_dir, ignore_errors=True)
