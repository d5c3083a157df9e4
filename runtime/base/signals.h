/* signals.h - "stop soon": SIGTERM, SIGUSR1 (and SIGINT) set one flag, which every loop polls.
 *
 * Handlers do nothing else. A second signal changes nothing. Installed once, first thing in main. Forked graders
 * get default handlers back through cairn_signals_reset. SIGXFSZ is ignored: a limit of file sizes is an error of write.
 */
#ifndef CAIRN_BASE_SIGNALS_H
#define CAIRN_BASE_SIGNALS_H

void cairn_signals_install(void); /* and lets them through, if they were blocked */
void cairn_signals_reset(void); /* in a forked child: default actions, flag cleared */
int cairn_stop_requested(void); /* number of the first signal that asked, or 0 */
void cairn_stop_request(int signo); /* as if it had come (a deadline, a test) */

#endif
