"""The tree of prompts' beginnings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.kv.radix_tree import RadixNode, RadixTree, Segment
from tests.fuzz.effort import examples


def path(*numbers: int) -> list[Segment]:
    return [(number,) for number in numbers]


def grown(*paths: list[Segment]) -> RadixTree:
    tree = RadixTree()
    for segments in paths:
        add(tree, segments)
    return tree


def add(tree: RadixTree, segments: list[Segment]) -> RadixNode:
    found = tree.match(segments)
    node = found[-1] if found else tree.root
    for segment in segments[len(found) :]:
        number = len(tree)
        node = tree.add(node, segment)
        node.block = number
    tree.use(node)
    return node


def oldest_first(tree: RadixTree) -> list[int]:
    return [node.block for node in tree.nodes()]


def test_the_longest_beginning_is_found() -> None:
    tree = grown(path(1, 2, 3), path(1, 4))
    assert [node.block for node in tree.match(path(1, 2, 5))] == [0, 1]
    assert [node.depth for node in tree.match(path(1, 4, 6))] == [1, 2]
    assert tree.match(path(2)) == []


def test_what_follows_a_beginning_is_found_from_there_on() -> None:
    tree = grown(path(1, 2, 3), path(1, 4))
    [first] = tree.match(path(1))
    assert [node.block for node in tree.match(path(2, 3, 9), first)] == [1, 2]
    assert tree.match(path(3), first) == []


def test_what_comes_after_is_older_than_what_it_comes_after() -> None:
    tree = grown(path(1, 2, 3), path(1, 4))
    assert oldest_first(tree) == [2, 1, 3, 0]
    tree.match(path(1, 2))
    assert oldest_first(tree) == [2, 3, 1, 0]


def test_what_others_come_after_is_not_dropped() -> None:
    tree = grown(path(1, 2))
    [first, _] = tree.match(path(1, 2))
    with pytest.raises(ValueError, match="1 segments come after the one in block 0"):
        tree.drop(first)
    with pytest.raises(ValueError, match="drop these first"):
        tree.drop(tree.root)


@examples(100)
@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, 2), max_size=5)), max_size=40))
def test_it_has_what_was_added_and_not_dropped(operations: list[list[int] | None]) -> None:
    tree, known = RadixTree(), set[Segment]()
    for numbers in operations:
        if numbers is not None:
            add(tree, path(*numbers))
            known |= {tuple(numbers[:end]) for end in range(1, len(numbers) + 1)}
        elif (oldest := tree.oldest()) is not None:
            known.remove(_numbers(oldest))
            tree.drop(oldest)
        tree.check_invariants()
        assert {_numbers(node) for node in tree.nodes()} == known


def _numbers(node: RadixNode) -> Segment:
    return () if node.parent is None else (*_numbers(node.parent), *node.segment)
