"""Which mounts are visible, from recorded text."""

from stoker.scratch.mount_table import below, encoded, parse, under, visible

# A root with a disk, a tmpfs mounted twice on one point, a mount hidden by one above it, a name with a blank.
RECORDED = r"""
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw
30 25 0:27 / /dev/shm rw,relatime - tmpfs tmpfs rw
40 27 8:1 / /data rw,relatime - xfs /dev/sda1 rw
41 40 8:2 / /data/set\040one ro,relatime - xfs /dev/sda2 rw
50 27 0:40 / /mnt/a/b rw - nfs4 server:/b rw
51 27 0:41 / /mnt/a rw - nfs4 server:/a rw
60 27 0:42 / /fixed rw - squashfs image ro
""".strip()


def test_what_is_hidden_is_left_out() -> None:
    """The lower of two on one point, and what lay below a folder that was mounted over later."""
    seen = [mount.number for mount in visible(parse(RECORDED))]
    assert sorted(seen) == [24, 27, 30, 40, 41, 51, 60]
    assert seen.index(27) < seen.index(40) < seen.index(41)


def test_read_only_is_told_of_the_mount_and_of_the_file_system() -> None:
    """Either makes it so; a blank in a name is a blank."""
    mounts = {mount.point: mount for mount in parse(RECORDED)}
    assert mounts["/data/set one"].read_only
    assert mounts["/fixed"].read_only
    assert not mounts["/data"].read_only


def test_the_kernel_s_own_are_known() -> None:
    """By their kind or their place."""
    own = {mount.point for mount in visible(parse(RECORDED)) if mount.kernel_own}
    assert own == {"/dev", "/dev/shm"}


def test_what_lies_under_and_below_a_path() -> None:
    """The mount that carries it, and the uppermost mounts in it; names that only begin alike are others."""
    mounts = visible(parse(RECORDED))
    assert under(mounts, "/data/set one/x").number == 41
    assert under(mounts, "/database").number == 27
    assert [mount.number for mount in below(mounts, "/data")] == [41]
    assert {mount.number for mount in below(mounts, "/")} == {24, 40, 51, 60}


def test_paths_are_written_as_an_overlay_reads_them() -> None:
    """Its own signs are escaped."""
    assert encoded("/a:b,c\\d") == "/a\\:b\\,c\\\\d"
