//! Rust text without what the compiler does not act on.

/// `text` with comments and the insides of literals blanked; line numbers stay as they are.
///
/// Knows line comments, nested block comments, strings with escapes, raw strings, and character
/// literals as opposed to lifetimes. That is all that the rules over the source need.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = if rest.starts_with(b"//") {
            rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            block_comment(rest)
        } else if let Some(length) = raw_string(bytes, at) {
            length
        } else if rest[0] == b'"' {
            quoted(rest, b'"')
        } else if let Some(length) = character(rest) {
            length
        } else {
            out.push(if rest[0].is_ascii() {
                rest[0] as char
            } else {
                ' '
            });
            at += 1;
            continue;
        };
        // A space keeps the words on both sides apart.
        out.push(' ');
        out.extend(rest[..length].iter().filter(|b| **b == b'\n').map(|_| '\n'));
        at += length;
    }
    out
}

/// The identifiers of one line, keywords included.
pub fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn raw_string(bytes: &[u8], at: usize) -> Option<usize> {
    let before = at.checked_sub(1).map(|i| bytes[i]);
    if before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return None;
    }
    let rest = &bytes[at..];
    let start = if rest.starts_with(b"br") {
        2
    } else {
        usize::from(rest.starts_with(b"r"))
    };
    let hashes = rest[start..].iter().take_while(|b| **b == b'#').count();
    if start == 0 || rest.get(start + hashes) != Some(&b'"') {
        return None;
    }
    let end = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let body = start + hashes + 1;
    let length = rest[body..]
        .windows(end.len())
        .position(|window| window == end);
    Some(length.map_or(rest.len(), |length| body + length + end.len()))
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b if b == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of a character literal; none for a lifetime or anything else.
fn character(rest: &[u8]) -> Option<usize> {
    if rest[0] != b'\'' {
        return None;
    }
    match rest.get(1)? {
        b'\\' => Some(quoted(rest, b'\'')),
        // The longest character takes four bytes.
        _ => (2..6)
            .find(|end| rest.get(*end) == Some(&b'\''))
            .map(|end| end + 1),
    }
    .filter(|length| {
        rest[1] == b'\\'
            || std::str::from_utf8(&rest[1..length - 1]).is_ok_and(|s| s.chars().count() == 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let text =
            "a // unsafe\nb /* x /* unsafe */ */ c \"un\\\"safe\" 'u' r#\"unsafe\"# b\"unsafe\"";
        let code = code_only(text);
        assert!(!code.contains("unsafe"), "{code}");
        assert_eq!(words(&code).collect::<Vec<_>>(), ["a", "b", "c", "b"]);
    }

    #[test]
    fn lifetimes_and_lines_stay() {
        let code = code_only("fn f<'a>(x: &'a str) {}\n/*\n*/\nlet c = '\\'';\nunsafe {}");
        assert!(code.contains("'a"));
        assert_eq!(
            code.lines().position(|line| line.contains("unsafe")),
            Some(4)
        );
    }

    #[test]
    fn an_identifier_that_ends_in_r_does_not_open_a_raw_string() {
        assert_eq!(
            words(&code_only("var\"x\" y")).collect::<Vec<_>>(),
            ["var", "y"]
        );
    }
}
