//! Names in a certificate, X.509 in DER.
//!
//! Sources: RFC 5280 §4.1 and §4.2.1.6, ITU-T X.690 §8.1 (tags and lengths).

use crate::bytes::Bytes;
use crate::{NAME_MAX, push_printable};

/// Further names are left out.
const NAMES_MAX: usize = 16;
/// Bytes of all names of a certificate: so that many flows do not take much memory.
const TEXT_MAX: usize = 2_048;

/// Tags of DER. Other elements are skipped.
mod tag {
    pub(super) const OID: u8 = 0x06;
    pub(super) const OCTETS: u8 = 0x04;
    pub(super) const BOOLEAN: u8 = 0x01;
    pub(super) const UTF8: u8 = 0x0c;
    pub(super) const NUMERIC: u8 = 0x12;
    pub(super) const PRINTABLE: u8 = 0x13;
    pub(super) const TELETEX: u8 = 0x14;
    pub(super) const IA5: u8 = 0x16;
    pub(super) const VISIBLE: u8 = 0x1a;
    pub(super) const BMP: u8 = 0x1e;
    pub(super) const SEQUENCE: u8 = 0x30;
    pub(super) const SET: u8 = 0x31;
    /// dNSName of GeneralName.
    pub(super) const DNS_NAME: u8 = 0x82;
    /// version of TBSCertificate.
    pub(super) const VERSION: u8 = 0xa0;
    /// extensions of TBSCertificate.
    pub(super) const EXTENSIONS: u8 = 0xa3;
}

/// 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
/// 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 29, 17];

/// The common names of a certificate's subject and then its DNS names, each once, as a JSON list. A malformed
/// certificate has the names before the fault. `None` if there are none.
pub(crate) fn names(der: &[u8]) -> Option<Box<str>> {
    let mut names = Vec::new();
    let _ = read(Bytes(der), &mut names);
    let (mut list, mut len) = (String::from("["), 0_usize);
    for name in names {
        len = len.saturating_add(name.len());
        if len > TEXT_MAX {
            break;
        }
        list.push_str(if list.len() > 1 { "," } else { "" });
        push_json(&mut list, &name);
    }
    list.push(']');
    (list.len() > 2).then(|| list.into())
}

/// `None` if the certificate is malformed.
fn read(mut der: Bytes<'_>, names: &mut Vec<String>) -> Option<()> {
    let mut certificate = Bytes(expect(&mut der, tag::SEQUENCE)?);
    let mut signed = Bytes(expect(&mut certificate, tag::SEQUENCE)?);
    if signed.0.first() == Some(&tag::VERSION) {
        element(&mut signed)?;
    }
    for _before_subject in ["serial", "algorithm", "issuer", "validity"] {
        element(&mut signed)?;
    }
    let mut subject = Bytes(expect(&mut signed, tag::SEQUENCE)?);
    while !subject.0.is_empty() {
        let mut attributes = Bytes(expect(&mut subject, tag::SET)?);
        while !attributes.0.is_empty() {
            let mut attribute = Bytes(expect(&mut attributes, tag::SEQUENCE)?);
            let is_name = expect(&mut attribute, tag::OID)? == COMMON_NAME;
            let (kind, text) = element(&mut attribute)?;
            if is_name {
                push(names, directory_string(kind, text));
            }
        }
    }
    while !signed.0.is_empty() {
        let (kind, value) = element(&mut signed)?;
        if kind == tag::EXTENSIONS {
            extensions(Bytes(value), names)?;
        }
    }
    Some(())
}

fn extensions(mut value: Bytes<'_>, names: &mut Vec<String>) -> Option<()> {
    let mut all = Bytes(expect(&mut value, tag::SEQUENCE)?);
    while !all.0.is_empty() {
        let mut extension = Bytes(expect(&mut all, tag::SEQUENCE)?);
        let is_names = expect(&mut extension, tag::OID)? == SUBJECT_ALT_NAME;
        if extension.0.first() == Some(&tag::BOOLEAN) {
            element(&mut extension)?;
        }
        if is_names {
            let mut value = Bytes(expect(&mut extension, tag::OCTETS)?);
            let mut general = Bytes(expect(&mut value, tag::SEQUENCE)?);
            while !general.0.is_empty() {
                let (kind, text) = element(&mut general)?;
                if kind == tag::DNS_NAME {
                    push(names, Some(ia5(text)));
                }
            }
        }
    }
    Some(())
}

/// The content of an element with this tag.
fn expect<'a>(bytes: &mut Bytes<'a>, tag: u8) -> Option<&'a [u8]> {
    let (kind, content) = element(bytes)?;
    (kind == tag).then_some(content)
}

/// The tag and content of the next element. Its tag has one byte, and its length at most four, as in all certificates.
fn element<'a>(bytes: &mut Bytes<'a>) -> Option<(u8, &'a [u8])> {
    let kind = bytes.byte()?;
    let len = match bytes.byte()? {
        short @ 0..=0x7f => short.into(),
        0x81 => bytes.byte()?.into(),
        0x82 => bytes.word()?.into(),
        0x83 => bytes.len24()?,
        _ => return None,
    };
    Some((kind, bytes.take(len)?))
}

fn push(names: &mut Vec<String>, name: Option<String>) {
    if let Some(name) = name
        && !name.is_empty()
        && name.len() <= NAME_MAX
        && names.len() < NAMES_MAX
        && !names.contains(&name)
    {
        names.push(name);
    }
}

/// A DirectoryString (RFC 5280 §4.1.2.4), or another string of ASN.1 that is found in its place.
fn directory_string(kind: u8, text: &[u8]) -> Option<String> {
    Some(match kind {
        tag::UTF8 => String::from_utf8_lossy(text).into_owned(),
        tag::PRINTABLE | tag::IA5 | tag::NUMERIC | tag::VISIBLE | tag::TELETEX => {
            // Teletex strings have Latin-1 in practice.
            text.iter().copied().map(char::from).collect()
        }
        tag::BMP => {
            let (units, _) = text.as_chunks();
            let units = units.iter().map(|&unit| u16::from_be_bytes(unit));
            char::decode_utf16(units)
                .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
                .collect()
        }
        _ => return None,
    })
}

fn ia5(text: &[u8]) -> String {
    let mut name = String::new();
    push_printable(&mut name, text);
    name
}

/// Control characters become dots, as in other names.
fn push_json(list: &mut String, name: &str) {
    list.push('"');
    for c in name.chars() {
        match c {
            '"' | '\\' => list.extend(['\\', c]),
            c if c.is_control() => list.push('.'),
            // They change the order of the text around them.
            '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => list.push('.'),
            c => list.push(c),
        }
    }
    list.push('"');
}
