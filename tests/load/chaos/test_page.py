import re

from livescale.load.chaos.faults import SeenFault
from livescale.load.chaos.schedule import SOURCE, Fault
from tests.load import sample_run
from tests.load.chaos.runs import killed, page, ran, record


def test_the_page_shows_the_faults_and_what_clients_noticed() -> None:
    faults = (killed("worker-0", 1.5), SeenFault(Fault(4.0, "freeze", SOURCE, seconds=2.0), 4.0, "<b>", "worker-1"))
    run = ran(record(), faults=faults, story=sample_run.told(sample_run.scale_out_and_in()), left=("process 7",))
    told = page(run)
    assert "left behind: process 7" in told
    assert "&lt;b&gt;" in told
    assert told.count("<svg") == 3
    assert "first token, shared" in told
    assert "worker-0</text>" in told or "worker-0" in told
    assert not re.search(r'(?:src|href)="(?!#)', told)
