//! Patterns of names of streams.

/// Longest pattern, in bytes.
const PATTERN_LEN_MAX: usize = 64;

/// Names of streams: `*` stands for any characters, and `?` for one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamePattern(String);

impl NamePattern {
    /// A text of at most 64 bytes with `*` or `?`, which names of streams do not have.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let is_one = text.contains(['*', '?']) && text.len() <= PATTERN_LEN_MAX;
        is_one.then(|| Self(text.to_owned()))
    }

    /// As it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a name is one of these. The time is at most the product of both lengths.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut of) = (0_usize, 0_usize);
        // The last star, and the bytes of the name before the end of what it stands for.
        let mut star: Option<(usize, usize)> = None;
        while let Some(&byte) = name.get(of) {
            match pattern.get(at) {
                Some(b'*') => {
                    star = Some((at, of));
                    at = at.saturating_add(1);
                }
                Some(&wanted) if wanted == b'?' || wanted == byte => {
                    at = at.saturating_add(1);
                    of = of.saturating_add(1);
                }
                _ => {
                    let Some((place, taken)) = star else {
                        return false;
                    };
                    let taken = taken.saturating_add(1);
                    star = Some((place, taken));
                    (at, of) = (place.saturating_add(1), taken);
                }
            }
        }
        pattern.iter().skip(at).all(|&byte| byte == b'*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_those_of_a_shell() {
        for (pattern, name, matches) in [
            ("host*", "host1", true),
            ("host*", "host", true),
            ("host*", "ghost1", false),
            ("*", "anything", true),
            ("*.web", "a.web", true),
            ("*.web", "a.web.b", false),
            ("h?st1", "host1", true),
            ("h?st1", "hst1", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("**a", "ba", true),
        ] {
            let of = NamePattern::of(pattern).unwrap();
            assert_eq!(of.matches(name), matches, "{pattern} {name}");
            let shell = format!("case {name} in {pattern}) exit 0;; esac; exit 1");
            let said = std::process::Command::new("sh")
                .args(["-c", &shell])
                .status();
            assert_eq!(said.unwrap().success(), matches, "{pattern} {name}");
        }
        assert!(NamePattern::of("host1").is_none());
        assert!(NamePattern::of(&"*".repeat(65)).is_none());
    }
}
