{{/* Labels of one part: dict "root" $ "part" NAME. */}}
{{- define "interlace.selector" -}}
app.kubernetes.io/name: interlace
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "interlace.labels" -}}
{{ include "interlace.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "interlace.image" -}}
{{- if .Values.image.digest -}}
image: "{{ .Values.image.repository }}@{{ .Values.image.digest }}"
{{- else -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
{{- end }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Labels and annotations of a pod: dict "root" $ "part" NAME "values" ITS. A new key restarts it. */}}
{{- define "interlace.podMetadata" -}}
labels: {{- include "interlace.labels" . | nindent 2 }}
annotations:
  checksum/keys: {{ toJson .root.Values.keys | sha256sum }}
  {{- with .values.podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* Where pods of a part run: dict "root" $ "part" NAME "values" ITS. */}}
{{- define "interlace.placement" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "interlace.selector" . | nindent 8 }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "interlace.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary .Release.Name "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* Of every pod: nobody's rights, and no token of the cluster. */}}
{{- define "interlace.pod" -}}
serviceAccountName: {{ include "interlace.serviceAccount" . }}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "interlace.secret" -}}
{{ .Values.keys.existingSecret | default (printf "%s-keys" .Release.Name) }}
{{- end }}

{{/* The volume of keys for pods that only check them: what they hold opens nothing but the API. */}}
{{- define "interlace.checkedKeys" -}}
name: keys
secret:
  secretName: {{ include "interlace.secret" .root }}
  items:
    {{- if .admin }}
    - {key: admin-sha256, path: admin}
    {{- end }}
    {{- if .root.Values.keys.askCallers }}
    - {key: api, path: api}
    {{- end }}
{{- end }}

{{- define "interlace.keyOptions" -}}
{{- if .Values.keys.askCallers }}
- --api-key-file=/run/keys/api
{{- end }}
{{- end }}

{{/* With tls.existingSecret every port speaks TLS, and parts know each other by its ca.crt. */}}
{{- define "interlace.tlsOptions" -}}
{{- if .Values.tls.existingSecret }}
- --tls-cert=/run/tls/tls.crt
- --tls-key=/run/tls/tls.key
- --ca=/run/tls/ca.crt
{{- end }}
{{- end }}

{{- define "interlace.tlsMount" -}}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /run/tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "interlace.tlsVolume" -}}
{{- with .Values.tls.existingSecret }}
- {name: tls, secret: {secretName: {{ . }}}}
{{- end }}
{{- end }}

{{- define "interlace.tmp" -}}
{name: tmp, emptyDir: {sizeLimit: {{ .Values.tmpSize }}}}
{{- end }}

{{- define "interlace.nodesName" -}}
dns:{{ .Release.Name }}-nodes.{{ .Release.Namespace }}.svc:8000
{{- end }}

{{/* dict "root" $ "port" NAME */}}
{{- define "interlace.probes" -}}
{{- $to := printf "port: %s, scheme: %s" .port (ternary "HTTPS" "HTTP" (ne .root.Values.tls.existingSecret "")) }}
livenessProbe:
  httpGet: {path: /v2/health/live, {{ $to }}}
  periodSeconds: 5
  timeoutSeconds: 3
readinessProbe:
  httpGet: {path: /v2/health/ready, {{ $to }}}
  periodSeconds: 2
  timeoutSeconds: 2
startupProbe:
  httpGet: {path: /v2/health/live, {{ $to }}}
  periodSeconds: 5
  failureThreshold: 360
{{- end }}
