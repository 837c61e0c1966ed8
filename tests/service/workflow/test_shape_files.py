from __future__ import annotations

from pathlib import Path

import pytest

from warpplan.planner.errors import MalformedFile
from warpplan.service.workflow.request import Item
from warpplan.service.workflow.shape_files import MAX_LINE_BYTES, read_shapes


def write(tmp_path: Path, content: str | bytes, name: str = "shapes.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def sizes(item: object) -> dict[str, object]:
    assert isinstance(item, Item), item
    return dict(item.shape)


def test_csv(tmp_path: Path) -> None:
    path = write(tmp_path, "M,N,K,dtype,name\n1,2,8,,first\n3,4,16,float16,\n")
    (one, first), (two, second) = read_shapes(path)
    assert (one, two) == (2, 3)
    assert first == Item("gemm", (("M", "1"), ("N", "2"), ("K", "8")), "bfloat16", None, "first")
    assert second == Item("gemm", (("M", "3"), ("N", "4"), ("K", "16")), "float16")


def test_csv_with_kernels_and_devices_in_any_order(tmp_path: Path) -> None:
    ((_, item),) = read_shapes(write(tmp_path, "K,device,kernel,N,M\n8,NVIDIA H200,gemm,2,1\n"))
    assert item == Item("gemm", (("K", "8"), ("N", "2"), ("M", "1")), device="NVIDIA H200")


def test_json_lines_take_flat_and_nested_sizes(tmp_path: Path) -> None:
    text = '{"M": 1, "N": 2, "K": 8}\n{"kernel": "gemm", "shape": {"M": 1, "N": 2, "K": 8}, "dtype": "float16"}\n'
    (_, flat), (_, nested) = read_shapes(write(tmp_path, text, "s.jsonl"))
    assert sizes(flat) == sizes(nested) == {"M": 1, "N": 2, "K": 8}
    assert isinstance(nested, Item)
    assert nested.dtype == "float16"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", [True, False])
def test_byte_order_mark_line_ends_and_blank_lines(tmp_path: Path, newline: str, mark: str, end: bool) -> None:
    text = mark + newline.join(["M,N,K", "", " 1 , 2,8", "   ", '"3",4,8']) + (newline if end else "")
    assert [(n, sizes(i)) for n, i in read_shapes(write(tmp_path, text))] == [
        (3, {"M": "1", "N": "2", "K": "8"}),
        (5, {"M": "3", "N": "4", "K": "8"}),
    ]


@pytest.mark.parametrize(
    ("name", "text", "line", "says"),
    [
        ("s.csv", "M,N,K\n1,2,8\n1,2\n3,4,8\n", 3, "2 columns, the header has 3"),
        ("s.csv", "M,N,K\n1,2,8\n1,2,8,9\n3,4,8\n", 3, "4 columns, the header has 3"),
        ("s.csv", 'M,N,K\n1,2,8\n1,"2,8\n3,4,8\n', 3, "not CSV"),
        ("s.csv", b"M,N,K\n1,2,8\n1,\xff,8\n3,4,8\n", 3, "not UTF-8: byte 0xff at 3"),
        ("s.jsonl", '{"M":1,"N":2,"K":8}\n{"M":1,\n{"M":3,"N":4,"K":8}\n', 2, "not JSON"),
        ("s.jsonl", '{"M":1,"N":2,"K":8}\n[1]\n{"M":3,"N":4,"K":8}\n', 2, "is not an object"),
        ("s.jsonl", '{"M":1,"N":2,"K":8}\n{"M":NaN}\n{"M":3,"N":4,"K":8}\n', 2, "NaN is not a size"),
        ("s.jsonl", '{"M":1,"N":2,"K":8}\n{"dtype":5}\n{"M":3,"N":4,"K":8}\n', 2, "dtype=5 is not text"),
        ("s.jsonl", '{"M":1,"N":2,"K":8}\n{"shape":5}\n{"M":3,"N":4,"K":8}\n', 2, "shape=5 is not an object"),
        ("s.jsonl", '{"M":1,"N":2,"K":8}\n' + "[" * 60000 + '\n{"M":3,"N":4,"K":8}\n', 2, "not JSON"),
        ("s.jsonl", '{"M":1,"N":2,"K":8}\n{"M":' + "9" * 5000 + '}\n{"M":3,"N":4,"K":8}\n', 2, "not JSON"),
    ],
)
def test_a_bad_line_is_named_and_costs_no_other(
    tmp_path: Path, name: str, text: str | bytes, line: int, says: str
) -> None:
    path = write(tmp_path, text, name)
    (_, before), (number, error), (_, after) = read_shapes(path)
    assert isinstance(before, Item)
    assert isinstance(after, Item)
    assert number == line
    assert isinstance(error, MalformedFile)
    assert error.line == line
    assert str(error).startswith(f"{path}:{line}: ")
    assert says in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "half"), [("s.csv", "M,N,K\n1,2,8\n4096,40"), ("s.jsonl", '{"M":1,"N":2,"K":8}\n{"M":4096,"N":40')]
)
def test_a_half_written_last_line(tmp_path: Path, name: str, half: str) -> None:
    (_, whole), (number, error) = read_shapes(write(tmp_path, half, name))
    assert isinstance(whole, Item)
    assert isinstance(error, MalformedFile)
    assert error.line == number


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    path = write(tmp_path, "M,N,K\n1,2,8\n" + "1" * (3 * MAX_LINE_BYTES) + "\n3,4,8\n")
    (_, before), (number, error), (after_number, after) = read_shapes(path)
    assert isinstance(before, Item)
    assert isinstance(error, MalformedFile)
    assert f"longer than {MAX_LINE_BYTES} bytes" in str(error)
    assert (number, after_number) == (3, 4)
    assert isinstance(after, Item)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("s.csv", b"", "is empty"),
        ("s.jsonl", b"\n \n", "is empty"),
        ("s.csv", b"M,N,K\n", "holds a header only"),
        ("s.csv", b"M,N,K\n\n \n", "holds a header only"),
        ("s.csv", b"\xff\xfeM\x00", "not UTF-8"),
        ("s.csv", b"M,M,K\n", "column 'M'"),
        ("s.csv", b"4096,4096,4096\n", "column '4096'"),
        ("s.csv", b"kernel,dtype\n", "no column of sizes"),
        ("s.csv", b'"M,N\n', "not CSV"),
        ("s.txt", b"M,N,K\n", "unknown suffix '.txt'"),
    ],
)
def test_files_that_hold_no_shapes(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = write(tmp_path, content, name)
    with pytest.raises(MalformedFile) as caught:
        list(read_shapes(path))
    assert says in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="No such file"):
        read_shapes(tmp_path / "no.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(MalformedFile, match="directory"):
        read_shapes(tmp_path / "folder.csv")


@pytest.mark.parametrize(
    ("name", "text"), [("s.csv", "N,kernel\n5,\n6,gemm\n"), ("s.jsonl", '{"N":5}\n{"N":6,"kernel":"gemm"}\n')]
)
def test_a_line_without_a_kernel_is_of_the_one_that_is_meant(tmp_path: Path, name: str, text: str) -> None:
    read = [item for _, item in read_shapes(write(tmp_path, text, name), "vector_add")]
    assert [item.kernel for item in read if isinstance(item, Item)] == ["vector_add", "gemm"]
