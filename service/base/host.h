/* Which machine this is, for peers that could share its memory. Any thread. */
#ifndef SERVICE_BASE_HOST_H
#define SERVICE_BASE_HOST_H

enum { HOST_ID_SIZE = 40 };

/* The same in all processes of one start of the machine, containers included, and different from all others. "": it
 * cannot be told. */
void host_id(char out[HOST_ID_SIZE]);

#endif
