//! Credentials out of names and messages: libraries quote the URLs that they fail at, and servers what they were sent.

use std::fmt;

/// What stands for a secret.
const HIDDEN: &str = "[hidden]";
/// Messages are cut here: servers send whole pages with an error.
const MAX_MESSAGE: usize = 1000;
/// Shorter values of a query are no secrets, and replacing them would mangle the rest of a message.
const SHORTEST_SECRET: usize = 6;

/// Strings that no message may show.
#[derive(Clone, Default)]
pub(super) struct Secrets(Vec<String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

impl Secrets {
    /// Adds a string, whatever its length is.
    pub(super) fn add(&mut self, secret: &str) {
        if !secret.is_empty() && !self.0.iter().any(|it| it == secret) {
            self.0.push(secret.into());
            // One may contain another.
            self.0.sort_by_key(|it| std::cmp::Reverse(it.len()));
        }
    }

    /// Adds the credentials of a URL: the password, and a user and everything in a query that may be a signature or token.
    pub(super) fn add_url(&mut self, url: &url::Url) {
        for text in url.password().into_iter().chain(url.query()) {
            self.add(text);
            self.add(&decode(text));
        }
        let values = url.query().unwrap_or_default().split('&');
        let values = values.map(|part| part.split_once('=').map_or(part, |(_, value)| value));
        for value in values.chain([url.username()]) {
            for text in [value, &decode(value)] {
                if text.len() >= SHORTEST_SECRET {
                    self.add(text);
                }
            }
        }
    }

    /// An error with its causes as one text that shows no secret.
    pub(super) fn describe(&self, error: &dyn std::error::Error) -> String {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(it) = cause {
            let part = it.to_string();
            if !text.contains(&part) {
                text = format!("{text}: {part}");
            }
            cause = it.source();
        }
        let mut text = self.0.iter().fold(urls(&text), |text, secret| text.replace(secret, HIDDEN));
        if let Some((end, _)) = text.char_indices().nth(MAX_MESSAGE) {
            text.truncate(end);
            text.push('…');
        }
        text
    }
}

/// Percent-decoded. `+` means a space in queries only, and there no harm is done by a secret too many.
pub(super) fn decode(text: &str) -> String {
    let pairs = text.replace('&', "%26").replace('=', "%3D").replace('+', "%2B");
    url::form_urlencoded::parse(pairs.as_bytes()).map(|(name, _)| name.into_owned()).collect()
}

/// A URL without user, password, query and fragment.
pub(super) fn name(url: &url::Url) -> String {
    let mut name = url.clone();
    // Fails for URLs without a host, which have neither.
    let _ = name.set_username("");
    let _ = name.set_password(None);
    name.set_query(None);
    name.set_fragment(None);
    name.into()
}

/// A text in which every URL has lost user, password, query and fragment.
fn urls(text: &str) -> String {
    let (mut done, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        done.push_str(before);
        let end = after.find(|it: char| it.is_whitespace() || "\"'<>()`".contains(it)).unwrap_or(after.len());
        let (url, next) = after.split_at(end);
        let authority = url.find(['/', '?', '#']).unwrap_or(url.len());
        let host = url[..authority].rfind('@').map_or(0, |at| at + 1);
        let tail = url.find(['?', '#']).unwrap_or(url.len());
        done.push_str(&url[host..tail]);
        rest = next;
    }
    done + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_in_messages_lose_their_credentials() {
        for (text, clean) in [
            ("no URL", "no URL"),
            ("for url (https://me:pw@host:80/a/b?sig=1#x): refused", "for url (https://host:80/a/b): refused"),
            ("\"s3://bucket/a@b\" and http://u@h?q", "\"s3://bucket/a@b\" and http://h"),
            ("://", "://"),
        ] {
            assert_eq!(urls(text), clean);
        }
    }

    #[test]
    fn secrets_do_not_show_in_causes() {
        let url = url::Url::parse("https://me:p%40ss@host/f?X-Amz-Signature=abc%2Fdef&x=1").expect("a URL");
        assert_eq!(name(&url), "https://host/f");
        let mut secrets = Secrets::default();
        secrets.add_url(&url);
        secrets.add("key");
        let cause = std::io::Error::other("p@ss, p%40ss, abc/def, abc%2Fdef, key");
        let text = secrets.describe(&crate::Error::io("f", cause));
        assert!(text.starts_with("cannot read f: "), "{text}");
        for secret in ["p@ss", "p%40ss", "abc", "def", "key"] {
            assert!(!text.contains(secret), "{text}");
        }
        let debug = format!("{secrets:?}");
        assert!(!debug.contains("ss,") && debug.ends_with("secrets"), "{debug}");
    }
}
