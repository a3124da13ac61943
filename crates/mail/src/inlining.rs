//! Small files of messages, shown with them: a client that is given a picture need not ask for it.
//!
//! # Contract
//! What is shown stays within the room that the page has left. A file that is not shown is had by get_attachment.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use waybill_kernel::Result;
use waybill_store::{STATEMENTS_MAX, Statement, Tx};

use crate::agents::AttachmentsPolicy;
use crate::inbox::MessageView;

/// Of a file whose sender has said nothing about it.
const INLINE_BYTES_MAX: usize = 64 << 10;
/// The name of its field, and what JSON puts around it.
const FIELD_BYTES: usize = 24;

/// Adds the bytes of files to the messages, the first of them first, for as long as there is room for them as JSON.
pub(crate) async fn inline(tx: &mut Tx<'_>, messages: &mut [MessageView], room: usize) -> Result<()> {
    const POLICY: &str = "SELECT s.attachments_policy FROM mail_messages m \
        JOIN mail_agents s ON s.tenant = $1 AND s.agent = m.sender WHERE m.tenant = $1 AND m.message = $2";
    const CONTENT: &str = "SELECT content FROM mail_attachments WHERE tenant = $1 AND message = $2 AND position = $3";
    let mut room = room;
    let mut with_files: Vec<_> = messages.iter_mut().filter(|message| !message.attachments.is_empty()).collect();
    for some in with_files.chunks_mut(STATEMENTS_MAX) {
        let asked: Vec<Statement<'_>> = some.iter().map(|message| (POLICY, vec![message.id.into()])).collect();
        for (message, rows) in some.iter_mut().zip(tx.query_all(&asked).await?) {
            let policy = rows.first().map_or(Ok(AttachmentsPolicy::Auto), |row| row.text(0).map(stored))?;
            let id = message.id;
            for (position, file) in message.attachments.iter_mut().enumerate() {
                let Some(left) = room_after(policy, file.bytes, room) else { continue };
                // One that an archive was without when it was imported has no row.
                let row = tx.query_opt(CONTENT, &[id.into(), (position as i64).into()]).await?;
                let Some(row) = row else { continue };
                file.content_base64 = Some(STANDARD.encode(row.bytes(0)?));
                room = left;
            }
        }
    }
    Ok(())
}

fn stored(policy: &str) -> AttachmentsPolicy {
    let known = [AttachmentsPolicy::Inline, AttachmentsPolicy::File];
    known.into_iter().find(|known| known.as_str() == policy).unwrap_or_default()
}

/// What is left after a file of so many bytes; None where it is not shown.
fn room_after(policy: AttachmentsPolicy, bytes: usize, room: usize) -> Option<usize> {
    let max = match policy {
        AttachmentsPolicy::File => return None,
        AttachmentsPolicy::Inline => usize::MAX,
        AttachmentsPolicy::Auto => INLINE_BYTES_MAX,
    };
    let written = bytes.div_ceil(3).saturating_mul(4).saturating_add(FIELD_BYTES);
    if bytes > max { None } else { room.checked_sub(written) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_shown_as_its_sender_wants_and_as_there_is_room() {
        const ROOM: usize = 2 << 20;
        let shown = |policy, bytes, room| room_after(policy, bytes, room).is_some();
        for (policy, bytes, expected) in [
            (AttachmentsPolicy::Auto, 0, true),
            (AttachmentsPolicy::Auto, INLINE_BYTES_MAX, true),
            (AttachmentsPolicy::Auto, INLINE_BYTES_MAX + 1, false),
            (AttachmentsPolicy::Inline, INLINE_BYTES_MAX + 1, true),
            (AttachmentsPolicy::Inline, ROOM, false),
            (AttachmentsPolicy::Inline, usize::MAX, false),
            (AttachmentsPolicy::File, 1, false),
        ] {
            assert_eq!(shown(policy, bytes, ROOM), expected, "{policy:?} {bytes}");
        }
        assert_eq!(room_after(AttachmentsPolicy::Auto, 4, 32), Some(0), "base64 has four characters for three bytes");
        assert_eq!(room_after(AttachmentsPolicy::Auto, 4, 31), None);
    }

    #[test]
    fn a_policy_that_nobody_knows_is_the_usual_one() {
        assert_eq!(
            ["inline", "file", "auto", "else"].map(stored),
            [AttachmentsPolicy::Inline, AttachmentsPolicy::File, AttachmentsPolicy::Auto, AttachmentsPolicy::Auto,]
        );
    }
}
