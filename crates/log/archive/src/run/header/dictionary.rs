//! Numbered byte strings: link headers and TCP options, of which a run has few.

use std::collections::HashMap;

use parquet::data_type::ByteArray;

/// Distinct byte strings, numbered in order of first use.
#[derive(Debug, Default)]
pub(crate) struct Dictionary {
    pub(crate) entries: Vec<ByteArray>,
    codes: HashMap<Vec<u8>, u32>,
}

impl Dictionary {
    pub(crate) fn code(&mut self, bytes: &[u8]) -> u32 {
        if let Some(code) = self.codes.get(bytes) {
            return *code;
        }
        let code = u32::try_from(self.entries.len());
        let code = code.expect("a run has half a million packets");
        self.entries.push(ByteArray::from(bytes.to_vec()));
        self.codes.insert(bytes.to_vec(), code);
        code
    }

    pub(crate) fn is(&self, code: u32, bytes: &[u8]) -> bool {
        let entry = self.entries.get(code as usize);
        entry.is_some_and(|entry| entry.data() == bytes)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.codes.clear();
    }
}
