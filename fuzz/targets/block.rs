//! Any bytes as a block file of a log: read, and exported.
//!
//! Input: 8 bytes of choices (see [`Choices`]), then either a block file, as it is
//! or with its checksums put right, or the records of blocks whose headers are
//! put before them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strata_blocks::{ALIGNMENT, BlockHeader, HEADER_LEN, MAGIC, Records, Summary};
use strata_fuzz::{Bounded, Chooser, log_of};
use strata_query::{ExportOptions, FileFormat, Find, export};
use strata_store::{Select, StoreError};
use strata_wire::AddressFamily;

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

/// How the bytes are taken.
struct Choices {
    /// 0 as they are, 1 checksums put right, 2 and 3 as records.
    layout: u8,
    sealed: bool,
    pcap: bool,
    comments: bool,
    searches: bool,
    /// Also the first sequence number of blocks made of records.
    from: u16,
}

impl Choices {
    fn take(choose: &mut Chooser<'_>) -> Self {
        let (layout, flags, from) = (choose.u8() % 4, choose.u8(), choose.u16());
        let _ = choose.u32();
        Self {
            layout,
            sealed: flags & 1 != 0,
            pcap: flags & 2 != 0,
            comments: flags & 4 != 0,
            searches: flags & 8 != 0,
            from,
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    let choices = Choices::take(&mut choose);
    let bytes = choose.rest();
    parts(bytes, u64::from(choices.from));
    let file = match choices.layout {
        0 => bytes.to_vec(),
        1 => with_checksums(bytes),
        _ => blocks_of_records(bytes, u64::from(choices.from)),
    };
    whole(&file, &choices);
});

/// Of all blocks: the seeds are recorded with `--hash-seed 1`.
const HASH_SEED: [u64; 2] = [1, 0];

/// The formats by themselves.
fn parts(bytes: &[u8], first_seq: u64) {
    if let Some(head) = bytes.first_chunk::<HEADER_LEN>()
        && let Ok(header) = BlockHeader::parse(head)
    {
        assert_eq!(BlockHeader::parse(&header.emit()), Ok(header));
        assert!(header.stored_len().is_multiple_of(ALIGNMENT));
    }
    if let Ok(summary) = Summary::parse(bytes) {
        let mut again = Vec::new();
        summary.emit(&mut again);
        assert_eq!(again.len(), bytes.len());
        assert_eq!(Summary::parse(&again).as_ref(), Ok(&summary));
        let _ = (
            summary.may_hold(0),
            summary.may_hold(u64::MAX),
            summary.may_hold(first_seq),
        );
    }
    records(Records::new(bytes, first_seq), bytes.len());
    records(Records::new(bytes, u64::MAX - first_seq), bytes.len());
}

/// Ends, and after a bad record at once.
fn records(mut records: Records<'_>, body_len: usize) {
    // A record is at least its prefix.
    for _ in 0..=body_len / strata_blocks::PREFIX_LEN {
        match records.next() {
            None => return,
            Some(Ok(_)) => {}
            Some(Err(bad)) => {
                assert!(bad.at < body_len && records.next().is_none());
                return;
            }
        }
    }
    assert!(records.next().is_none(), "more records than bytes for them");
}

fn whole(file: &[u8], choices: &Choices) {
    // Whether records stand in for earlier ones may be crafted too.
    let log = log_of(file, HASH_SEED, choices.sealed, None, choices.comments);
    let recording = &log.recordings()[0];
    let select = Select {
        from_ns: choices.searches.then_some(u64::from(choices.from)),
        to_ns: choices.searches.then_some(u64::MAX),
        addresses: if choices.searches {
            vec![vec![(AddressFamily::Ipv4, 0x0a00_0001)]]
        } else {
            Vec::new()
        },
        ..Select::default()
    };
    let most = file.len() / ALIGNMENT + 3;
    let (mut blocks, mut damaged) = (0, 0);
    for block in log.blocks(recording, &Select::default()) {
        match block {
            Ok(block) => {
                blocks += 1;
                assert!(block.offset.is_multiple_of(ALIGNMENT as u64));
                records(block.records(), block.header.body_len as usize);
                let wanted = select.may_match(&block.header, |key| block.summary.may_hold(key));
                assert!(wanted || choices.searches || block.header.packets == 0);
            }
            Err(StoreError::Damage(damage)) => {
                damaged += 1;
                assert!(damage.offset <= file.len() as u64 && !damage.to_string().is_empty());
            }
            Err(error) => panic!("a virtual disk does not fail: {error}"),
        }
        assert!(
            blocks + damaged <= most,
            "more blocks than the file has room for"
        );
    }
    if choices.layout > 1 && !file.is_empty() {
        assert!(blocks > 0 && damaged == 0, "blocks made well are read");
    }
    let found = log.blocks(recording, &select).filter(Result::is_ok).count();
    assert!(found <= blocks, "a search finds a part of all");
    let summaries = Select {
        without_records: true,
        ..Select::default()
    };
    for block in log.blocks(recording, &summaries).flatten() {
        assert!(block.records().next().is_none());
    }
    let (_, loss) = log
        .accounting(recording)
        .expect("a virtual disk does not fail");
    assert!(loss.checkpoint_ns.is_none(), "there is no checkpoint");
    assert_eq!(log.stored_bytes(recording).ok(), Some(file.len() as u64));
    let format = if choices.pcap {
        FileFormat::Pcap
    } else {
        FileFormat::PcapNg
    };
    let options = ExportOptions {
        select,
        matches: None,
        comments: choices.comments,
        ..ExportOptions::default()
    };
    let mut output = Vec::new();
    match export(&log, &mut output, format, &Find::default(), options) {
        Ok(exported) => assert!(exported.packets <= exported.examined),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn put(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

fn get(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}

/// Puts right what chance does not: magic number, recording, key and checksums of
/// blocks whose lengths fit the file.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut file = bytes.to_vec();
    let mut at = 0;
    while at + HEADER_LEN <= file.len() {
        let block = &mut file[at..];
        block[..8].copy_from_slice(&MAGIC);
        put(block, 40, 1);
        for (at, word) in [112, 120].into_iter().zip(HASH_SEED) {
            block[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let (body_len, summary_len) = (get(block, 24), get(block, 28));
        let after_body = HEADER_LEN + body_len;
        let mut stored = ALIGNMENT;
        if after_body + summary_len <= block.len() {
            let body_crc = crc32c::crc32c(&block[HEADER_LEN..after_body]);
            let summary_crc = crc32c::crc32c(&block[after_body..after_body + summary_len]);
            put(block, 12, body_crc);
            put(block, 16, summary_crc);
            stored = (after_body + summary_len).next_multiple_of(ALIGNMENT);
        }
        let header_crc = crc32c::crc32c(&block[12..HEADER_LEN]);
        put(block, 8, header_crc);
        at += stored;
    }
    file
}

/// A file of up to four good blocks: each takes a length and that number of bytes as its records.
fn blocks_of_records(bytes: &[u8], first_seq: u64) -> Vec<u8> {
    let mut choose = Chooser::new(bytes);
    let mut file = Vec::new();
    let mut summary = Vec::new();
    Summary::default().emit(&mut summary);
    for number in 0..4 {
        if choose.is_empty() {
            break;
        }
        let len = usize::from(choose.u16());
        let body = choose.take(len);
        let header = BlockHeader {
            body_crc: crc32c::crc32c(body),
            summary_crc: crc32c::crc32c(&summary),
            // Bit 0: never skipped.
            flags: 1,
            body_len: u32::try_from(body.len()).expect("inputs are short"),
            summary_len: u32::try_from(summary.len()).expect("it is empty"),
            block_number: number,
            recording: 1,
            hash_seed: HASH_SEED,
            first_seq,
            next_seq: first_seq + 1,
            ts_max_ns: u64::MAX,
            packets: 1,
            records: 1,
            ..BlockHeader::default()
        };
        file.extend_from_slice(&header.emit());
        file.extend_from_slice(body);
        file.extend_from_slice(&summary);
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
    }
    file
}
