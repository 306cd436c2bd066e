//! What a device holds that Strata did not write, as far as its ends say.

/// What is known by its bytes at an offset from the start.
const AT_START: &[(u64, &[u8], &str)] = &[
    (512, b"EFI PART", GPT),
    (4096, b"EFI PART", GPT),
    (0, b"LABELONE", LVM),
    (512, b"LABELONE", LVM),
    (1024, b"LABELONE", LVM),
    (1536, b"LABELONE", LVM),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (0, RAID_MAGIC, RAID),
    (4096, RAID_MAGIC, RAID),
    (0, b"XFSB", "an XFS file system"),
    (65600, b"_BHRfS_M", "a Btrfs file system"),
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (0, b"hsqs", "a squashfs file system"),
    (32769, b"CD001", "an ISO 9660 file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (54, b"FAT", "a FAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (
        4096,
        b"STRADISK",
        "a stripe whose formatting was not finished",
    ),
];
/// What is known by its bytes at a multiple of 512 near the end.
const AT_END: &[(&[u8], &str)] = &[(b"EFI PART", GPT), (RAID_MAGIC, RAID)];

const GPT: &str = "a partition table (GPT)";
const LVM: &str = "a physical volume of LVM";
const RAID: &str = "a part of a RAID (md)";
const RAID_MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";
/// ZFS has 128 KiB of these, of 1 KiB or more, in its first label.
const ZFS_MAGIC: &[u8] = b"\x0c\xb1\xba\x00";

/// What is there, in words, as the first and the last bytes of a device say.
pub(super) fn what(first: &[u8], last: &[u8]) -> &'static str {
    let is_at = |bytes: &[u8], at: usize, magic: &[u8]| {
        bytes
            .get(at..)
            .is_some_and(|bytes| bytes.starts_with(magic))
    };
    let at_start = AT_START
        .iter()
        .find(|(at, magic, _)| usize::try_from(*at).is_ok_and(|at| is_at(first, at, magic)));
    if let Some((_, _, what)) = at_start {
        return what;
    }
    if (128 << 10..256 << 10)
        .step_by(1024)
        .any(|at| is_at(first, at, ZFS_MAGIC))
    {
        return "a part of a ZFS pool";
    }
    let near_end = |magic: &[u8]| {
        (0..last.len())
            .step_by(512)
            .any(|at| is_at(last, at, magic))
    };
    if let Some((_, what)) = AT_END.iter().find(|(magic, _)| near_end(magic)) {
        return what;
    }
    match is_at(first, 510, b"\x55\xaa") {
        true => "a partition table or boot sector (MBR)",
        false => "data that Strata did not write",
    }
}
