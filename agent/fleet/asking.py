"""Ask many agents, so many at once; what was answered before Ctrl-C counts."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from agent.fleet.answers import Answer
from agent.fleet.inventory import Agent


def ask_all(
    agents: Sequence[Agent],
    ask: Callable[[Agent], Answer],
    parallel: int,
    cancel: Callable[[], None],
    finished: Callable[[Answer], None],
) -> list[Answer]:
    """Return the answers in the order of the agents. `finished`: called with each, as it arrives."""
    answers: dict[str, Answer] = {}
    with ThreadPoolExecutor(parallel) as pool:
        futures = [pool.submit(ask, agent) for agent in agents]
        try:
            for future in as_completed(futures):
                answer = future.result()
                answers[answer.node] = answer
                finished(answer)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            cancel()
            if not isinstance(error, KeyboardInterrupt):
                raise
    missed = (Answer(agent.node, None, "", "interrupted before it answered") for agent in agents)
    return [answers.get(answer.node, answer) for answer in missed]
