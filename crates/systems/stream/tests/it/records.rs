//! Records in pages, of both forms.

use proptest::prelude::*;
use strata_stream::{
    AppendError, Blocks, Form, Item, Missing, Page, PageHeader, PageHeaderError, PageWriter,
    RECORD_LEN_MAX, StreamKey,
};
use strata_testkit::check_golden;

const KEY: [u8; 16] = *b"a key of 16 byte";

/// A page in blocks of a size.
struct InBlocks {
    block: Vec<u8>,
    written: Vec<u8>,
    whole_until: usize,
}

impl InBlocks {
    fn new(block_bytes: usize) -> Self {
        Self {
            // What an earlier block has left.
            block: vec![0xee; block_bytes],
            written: Vec::new(),
            whole_until: 0,
        }
    }
}

impl Blocks for InBlocks {
    type Error = &'static str;

    fn current(&mut self) -> &mut [u8] {
        &mut self.block
    }

    fn full(&mut self, whole_until: usize, _: u32) -> Result<(), Self::Error> {
        self.written.extend(&self.block);
        self.whole_until = whole_until;
        self.block.fill(0xee);
        Ok(())
    }
}

fn header(form: Form) -> PageHeader {
    PageHeader {
        stream: 0x0102_0304_0506_0708,
        index: 5,
        lap: 0xaabb_ccdd_eeff_0011,
        first_seq: 1_000,
        created_ns: 1_700_000_000_000_000_000,
        record_magic: 0x5354_5241,
        form,
    }
}

/// Writes payloads into a page of 64 KiB; how many fit.
fn written(form: Form, block_bytes: usize, payloads: &[Vec<u8>]) -> (Vec<u8>, usize) {
    let key = StreamKey::new(KEY);
    let mut blocks = InBlocks::new(block_bytes);
    let mut writer = PageWriter::begin(&header(form), &key, 1 << 16, &mut blocks).unwrap();
    let mut fit = 0;
    for payload in payloads {
        match writer.append(&mut blocks, payload) {
            Ok(()) => fit += 1,
            Err(AppendError::Full) => break,
            Err(error) => panic!("{error:?}"),
        }
    }
    writer.zero_rest(&mut blocks);
    blocks.full(writer.at(), writer.number()).unwrap();
    blocks.written.resize(1 << 16, 0);
    (blocks.written, fit)
}

fn read(form: Form, bytes: &[u8]) -> (Vec<Vec<u8>>, Vec<Missing>) {
    let key = StreamKey::new(KEY);
    let parsed = PageHeader::parse(bytes, header(form).stream, &key, 1 << 16).unwrap();
    assert_eq!(parsed, header(form));
    let page = Page::new(parsed, key.page(parsed.index, parsed.lap), bytes);
    let (mut payloads, mut missing) = (Vec::new(), Vec::new());
    for item in page.walk() {
        match item {
            Item::Record(record) => payloads.push(record.payload.to_vec()),
            Item::Missing(gap) => missing.push(gap),
        }
    }
    (payloads, missing)
}

const LINKED: Form = Form::Linked {
    redundancy: 3,
    block_bytes: Some(1 << 14),
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// What was appended is read, whatever the blocks; and all blocks give the same bytes.
    #[test]
    fn pages_are_read_as_written(
        lens in prop::collection::vec(prop_oneof![0_usize..40, 0_usize..3000, 16_000_usize..16_300], 1..60),
        linked: bool,
    ) {
        let form = if linked { LINKED } else { Form::Sealed };
        let payloads: Vec<Vec<u8>> = lens.iter().enumerate().map(|(n, &len)| {
            vec![n.to_le_bytes()[0]; len.min(form.record_len_max(1 << 16))]
        }).collect();
        let (bytes, fit) = written(form, 1 << 16, &payloads);
        prop_assert_eq!(&written(form, 1 << 12, &payloads), &(bytes.clone(), fit));
        let (found, missing) = read(form, &bytes);
        prop_assert_eq!(&found[..], &payloads[..fit]);
        prop_assert!(missing.is_empty());
    }

    /// Damage costs the records that it hits, and causes no panic.
    #[test]
    fn damaged_pages_give_records_that_were_written(
        linked: bool, hits in prop::collection::vec((64_usize..1 << 16, any::<u64>()), 1..20),
    ) {
        let form = if linked { LINKED } else { Form::Sealed };
        let payloads: Vec<Vec<u8>> = (0..200_u64).map(|n| {
            n.to_le_bytes().repeat(1 + usize::try_from(n % 60).unwrap())
        }).collect();
        let (mut bytes, fit) = written(form, 1 << 14, &payloads);
        for (at, word) in hits {
            let end = (at + 8).min(bytes.len());
            bytes[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
        }
        let (found, _) = read(form, &bytes);
        prop_assert!(found.len() <= fit);
        if !linked {
            for payload in found {
                prop_assert!(payloads.contains(&payload));
            }
        }
    }
}

#[test]
fn records_of_any_length_up_to_a_mebibyte_fit() {
    let key = StreamKey::new(KEY);
    let page_bytes = 4 << 20;
    let mut blocks = InBlocks::new(256 << 10);
    let begun = PageWriter::begin(&header(Form::Sealed), &key, page_bytes, &mut blocks);
    let mut writer = begun.unwrap();
    let largest = vec![7; RECORD_LEN_MAX];
    for _ in 0..3 {
        writer.append(&mut blocks, &largest).unwrap();
    }
    assert_eq!(writer.append(&mut blocks, &largest), Err(AppendError::Full));
    let too_long = AppendError::TooLong {
        len: RECORD_LEN_MAX + 1,
        max: RECORD_LEN_MAX,
    };
    let refused = writer.append(&mut blocks, &vec![0; RECORD_LEN_MAX + 1]);
    assert_eq!(refused, Err(too_long));
    writer.append(&mut blocks, b"short").unwrap();
    assert_eq!((writer.number(), blocks.whole_until % 8), (4, 0));
}

#[test]
fn a_hole_costs_its_records_and_is_counted() {
    let payloads: Vec<Vec<u8>> = (0..100_u8).map(|n| vec![n; 100]).collect();
    for (form, pitch) in [(Form::Sealed, 120), (LINKED, 128)] {
        let (mut bytes, fit) = written(form, 1 << 16, &payloads);
        assert_eq!(fit, 100);
        bytes[64 + 10 * pitch..64 + 12 * pitch].fill(0);
        let (found, missing) = read(form, &bytes);
        assert_eq!(
            found,
            [&payloads[..10], &payloads[12..]].concat(),
            "{form:?}"
        );
        assert_eq!(missing, [Missing::Exact(2)], "{form:?}");
        // More than a linked record names.
        bytes[64 + 10 * pitch..64 + 20 * pitch].fill(0);
        let (found, missing) = read(form, &bytes);
        assert_eq!(found.len(), 90, "{form:?}");
        if form == Form::Sealed {
            assert_eq!(missing, [Missing::Exact(10)]);
        } else {
            // Found since those after it confirm each other; at least as many as one names.
            assert_eq!(
                missing,
                [Missing::Between {
                    min: 3,
                    max: 10 * 128 / 24
                }]
            );
        }
    }
}

#[test]
fn a_record_is_valid_at_its_place_only() {
    let payloads = vec![vec![1; 48]; 20];
    let (bytes, _) = written(Form::Sealed, 1 << 16, &payloads);
    let mut moved = bytes.clone();
    moved.copy_within(64..128, 64 + 5 * 64);
    assert_eq!(read(Form::Sealed, &moved).1, [Missing::Exact(1)]);
    // Another use of the page.
    let key = StreamKey::new(KEY);
    let again = PageHeader {
        lap: 1,
        ..header(Form::Sealed)
    };
    let page = Page::new(again, key.page(again.index, again.lap), &bytes);
    assert_eq!(page.walk().count(), 0);
}

#[test]
fn headers_are_of_one_stream_and_damage_is_noticed() {
    let key = StreamKey::new(KEY);
    let bytes = header(Form::PAPER).emit(&key);
    let parse = |bytes: &[u8], stream| PageHeader::parse(bytes, stream, &key, 4 << 20);
    let stream = header(Form::PAPER).stream;
    assert_eq!(parse(&bytes, stream), Ok(header(Form::PAPER)));
    assert_eq!(PageHeader::claimed_stream(&bytes), Some(stream));
    assert_eq!(parse(&bytes, 1), Err(PageHeaderError::Stream));
    assert_eq!(parse(&[0; 64], stream), Err(PageHeaderError::Magic));
    for at in 0..64 {
        let mut changed = bytes;
        changed[at] ^= 0x10;
        assert!(parse(&changed, stream).is_err(), "byte {at}");
    }
}

/// `docs/formats/stream.md` shows these bytes.
#[test]
fn the_bytes_of_pages_do_not_change() {
    let payloads: Vec<Vec<u8>> = vec![b"first".to_vec(), vec![], (0..32).collect()];
    let mut text = String::new();
    for (name, form) in [("sealed", Form::Sealed), ("linked", LINKED)] {
        let (bytes, _) = written(form, 1 << 12, &payloads);
        text += &format!("{name}\n");
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap();
        for row in bytes[..=end].chunks(16) {
            let hex: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
            text += &format!("{}\n", hex.join(" "));
        }
    }
    check_golden(
        &std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pages.txt"),
        &text,
    );
}
